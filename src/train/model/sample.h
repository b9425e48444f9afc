// Text from a model: what it learned, at a glance.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/tokenizer.h"
#include "models/decoder.h"
#include "models/generate.h"

namespace stepc::train {

struct SampleOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 40;        // 0: the whole vocabulary
  uint64_t seed = 1;
  // The prompt begins a text, so what the tokenizer's post-processor puts around one (such as <s>) goes around it, as
  // transformers does. Otherwise it is taken as it is: from the middle of a text, or made by a chat template.
  bool is_whole_text = false;
  std::vector<std::string> stops = {};  // the text ends before the first of these
  std::vector<int64_t> stop_ids = {};   // and before these tokens; empty: the model's end-of-text tokens
};

struct Sample {
  std::string text;  // without the prompt
  std::string note;  // what the model did not see of the text, if there is such a part
};

// Text fit for a terminal: what is not UTF-8, and control characters but line breaks and tabs, become U+FFFD.
std::string printable(std::string_view text);

Sample sample_text(const models::Decoder& model, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options);
// Of a model that others run; it sees at most `context` tokens.
Sample sample_text(const models::DecoderConfig& config, const models::NextLogits& next_logits, int64_t context,
                   const Tokenizer& tokenizer, const std::string& prompt, const SampleOptions& options);

// The beginning of the held-out text, to be continued.
std::string held_out_prompt(const Tokenizer& tokenizer, const Corpus& corpus);

}  // namespace stepc::train
