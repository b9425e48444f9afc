// Samples a continuation from a language model, token by token, without a key-value cache: meant for a short look at
// what a model learned, not for serving. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <vector>

#include "models/decoder.h"

namespace stepc::models {

struct GenerateOptions {
  int64_t new_tokens = 64;
  double temperature = 1.0;  // 0 takes the likeliest token
  int64_t top_k = 0;         // 0 samples from the whole vocabulary
  int64_t context = 256;     // the model sees at most this many of the last tokens
  int64_t vocab_size = 0;    // only ids below it are drawn; 0: the model's (which may be padded)
  std::vector<int64_t> stop_ids = {};
  uint64_t seed = 0;
};

// The new tokens, without the prompt and without the stop token that may have ended them.
std::vector<int64_t> generate(Decoder model, const std::vector<int64_t>& prompt, const GenerateOptions& options);

}  // namespace stepc::models
