// The low-rank adapter that a config asks for.
#pragma once

#include <optional>

#include "models/lora.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"

namespace stepc::train {

// What [lora] asks for, of no base model yet; nullopt: all weights are trained.
std::optional<models::LoraConfig> adapter_of(const RunConfig::Lora& lora);

// Gives the directory a fresh adapter where the config asks for one; one that it has already is trained on.
void choose_adapter(const RunConfig& config, ModelDirectory& directory);

}  // namespace stepc::train
