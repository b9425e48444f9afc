// Which chat template a name in a config or on the command line means.
#pragma once

#include <filesystem>
#include <string>

#include "data/chat/chat_template.h"

namespace stepc::train {

// "model": what the model directory has, chat_template.jinja before the field of tokenizer_config.json; else a built-in
// one by name.
ChatTemplate choose_chat_template(const std::string& name, const std::filesystem::path& model_directory);

}  // namespace stepc::train
