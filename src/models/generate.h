// Samples a continuation from a language model, token by token, with the keys and values of what was read kept.
// Deterministic for a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/decoder.h"

namespace stepc::models {

struct GenerateOptions {
  int64_t new_tokens = 64;
  double temperature = 1.0;  // 0 takes the likeliest token
  int64_t top_k = 0;         // 0 samples from the whole vocabulary
  // The model sees at most this many tokens: of a longer prompt the last ones, and when a text outgrows it, the older
  // half of what it saw is left out. 0: the model's max_position_embeddings, which learned positions cannot exceed.
  int64_t context = 0;
  int64_t kept = 0;        // tokens at the prompt's beginning that are never left out, as far as there is room
  int64_t vocab_size = 0;  // only ids below it are drawn; 0: the model's (which may be padded)
  std::vector<int64_t> stop_ids = {};
  // Asked after each token, with all new ones; true ends the text.
  std::function<bool(const std::vector<int64_t>&)> done = {};
  uint64_t seed = 0;
};

// How many tokens the model sees at most.
int64_t context_of(const DecoderConfig& config, const GenerateOptions& options);

// (vocab): of the token that follows these, of which there are at least one and at most context_of() many. Asked with
// ever more of one text, until the older half of it is left out.
using NextLogits = std::function<at::Tensor(const std::vector<int64_t>& ids)>;
std::vector<int64_t> generate(const DecoderConfig& config, const NextLogits& next_logits,
                              const std::vector<int64_t>& prompt, const GenerateOptions& options);

// The new tokens, without the prompt and without the stop token that may have ended them.
std::vector<int64_t> generate(Decoder model, const std::vector<int64_t>& prompt, const GenerateOptions& options);

}  // namespace stepc::models
