// Text from a model: what it learned, at a glance.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/corpus.h"
#include "data/tokenizer.h"
#include "models/decoder.h"

namespace stepc::train {

struct SampleOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 40;        // 0: the whole vocabulary
  uint64_t seed = 1;
};

// Text fit for a terminal: what is not UTF-8, and control characters but line breaks and tabs, become U+FFFD.
std::string printable(std::string_view text);

// The continuation of the prompt, without the prompt. Stops at the model's end-of-text tokens.
std::string sample_text(const models::Decoder& model, const Tokenizer& tokenizer, const std::string& prompt,
                        const SampleOptions& options);

// The beginning of the held-out text, to be continued.
std::string held_out_prompt(const Tokenizer& tokenizer, const Corpus& corpus);

}  // namespace stepc::train
