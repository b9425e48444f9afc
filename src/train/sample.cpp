#include "train/sample.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "data/utf8.h"
#include "models/generate.h"

namespace stepc::train {

std::string printable(std::string_view text) {
  constexpr char32_t kReplacement = 0xFFFD;
  constexpr char32_t kDelete = 0x7F;
  constexpr char32_t kLastControl = 0x9F;
  std::string clean;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const bool control =
        (c.value < U' ' && c.value != U'\n' && c.value != U'\t') || (c.value >= kDelete && c.value <= kLastControl);
    append_utf8(clean, c.bytes == 0 || control ? kReplacement : c.value);
    at += std::max<size_t>(1, c.bytes);
  }
  return clean;
}

std::string sample_text(const models::Decoder& model, const Tokenizer& tokenizer, const std::string& prompt,
                        const SampleOptions& options) {
  USER_CHECK(!prompt.empty(), "--prompt is empty: give some text to continue");
  const std::vector<int32_t> encoded = tokenizer.encode(prompt);
  constexpr int64_t kLongestContext = 512;
  const models::GenerateOptions generation{
      .new_tokens = options.tokens,
      .temperature = options.temperature,
      .top_k = options.top_k,
      .context = std::min(kLongestContext, model->config().max_position_embeddings),
      .vocab_size = tokenizer.vocab_size(),
      .stop_ids = model->config().eos_token_ids,
      .seed = options.seed,
  };
  const std::vector<int64_t> ids = models::generate(model, {encoded.begin(), encoded.end()}, generation);
  return tokenizer.decode(std::vector<int32_t>(ids.begin(), ids.end()));
}

std::string held_out_prompt(const Tokenizer& tokenizer, const Corpus& corpus) {
  constexpr size_t kPromptTokens = 64;
  const auto seq = static_cast<size_t>(corpus.mixture().seq_len());
  PackedBatch window;
  window.resize(1, seq);
  corpus.fill_held_out(0, window.row(0, seq));
  const auto end = window.tokens.begin() + static_cast<ptrdiff_t>(std::min(kPromptTokens, seq));
  return tokenizer.decode(std::vector<int32_t>(window.tokens.begin(), end));
}

}  // namespace stepc::train
