// Low-rank adapters (https://arxiv.org/abs/2106.09685) on matrices of a decoder's layers, in and out in PEFT's form:
// adapter_config.json and the tensors of adapter_model.safetensors under PEFT's names. The base weights are frozen;
// only the adapters are trained, saved and loaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder.h"

namespace stepc::models {

struct LoraConfig {
  int64_t rank = 8;
  double alpha = 8.0;
  double dropout = 0.0;
  bool rank_stabilized = false;             // scaled by alpha / sqrt(rank) instead of alpha / rank
  std::vector<std::string> target_modules;  // last segments of paths: "q_proj"; "all-linear" alone: every matrix
  std::string base_model;                   // where the base weights are, for PEFT to find; may be empty
  std::string source = {};                  // the adapter_config.json that this was read from

  // Text of an adapter_config.json. Throws UserError that names the field and the value where it asks for more than
  // plain LoRA without biases.
  static LoraConfig from_json(std::string_view text);
  [[nodiscard]] std::string to_json(const DecoderConfig& model) const;
};

// Freezes the model and adds adapters, which change nothing until they are trained or loaded: one factor is drawn from
// the seed, the other is zero. In float32 at least, whatever the model. Throws UserError when a target names no matrix.
void add_adapters(const Decoder& model, const LoraConfig& config, uint64_t seed);

// The adapters under PEFT's names: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".
NamedTensors adapter_state(const Decoder& model);
// Strict: throws UserError on a missing, unknown or misshapen tensor and then leaves the adapters as they were.
void load_adapters(const Decoder& model, const NamedTensors& state);

// The parameters that an optimizer is for: those that require gradients.
NamedTensors trainable_parameters(const Decoder& model);

}  // namespace stepc::models
