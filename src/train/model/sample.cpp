#include "train/model/sample.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/check.h"
#include "data/utf8.h"

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

namespace {
// The place at which the first of the stops begins.
size_t stop_in(std::string_view text, const std::vector<std::string>& stops) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

// Whether the newest ids end with a stop. A byte of the stop is at most one token; a few more ids serve decoders that
// look at neighbours.
bool ends_a_stop(const Tokenizer& tokenizer, const std::vector<int64_t>& ids, const std::vector<std::string>& stops) {
  constexpr size_t kBefore = 8;
  size_t longest = 0;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  const size_t count = std::min(ids.size(), longest + kBefore);
  const std::vector<int32_t> newest(ids.end() - static_cast<ptrdiff_t>(count), ids.end());
  return stop_in(tokenizer.decode(newest), stops) != std::string_view::npos;
}

// The tokens of the prompt, and how many of the first ones the tokenizer added.
struct Prompt {
  std::vector<int64_t> ids;
  int64_t prefix = 0;
};

Prompt tokens_of(const Tokenizer& tokenizer, const std::string& text, bool is_whole_text) {
  Prompt prompt;
  const auto put = [&](const std::vector<int32_t>& ids) {
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
  };
  if (is_whole_text) put(tokenizer.prefix());
  prompt.prefix = static_cast<int64_t>(prompt.ids.size());
  put(tokenizer.encode(text));
  if (is_whole_text) put(tokenizer.suffix());
  return prompt;
}

std::string note_of(int64_t prompt, int64_t all, int64_t context) {
  if (prompt > context)
    return str("the prompt has {} tokens and the model sees {}: its beginning was left out", prompt, context);
  if (all > context)
    return str("the text outgrew the {} tokens that the model sees: of what was before, the older half was left out",
               context);
  return {};
}

using Generate = std::function<std::vector<int64_t>(const std::vector<int64_t>&, const models::GenerateOptions&)>;

Sample sample_with(const Generate& generate, const models::DecoderConfig& config, int64_t context,
                   const Tokenizer& tokenizer, const std::string& prompt, const SampleOptions& options) {
  USER_CHECK(!prompt.empty(), "--prompt is empty: give some text to continue");
  const auto empty_stop = [](const std::string& stop) { return stop.empty(); };
  USER_CHECK(std::ranges::none_of(options.stops, empty_stop), "--stop is empty: give the text to stop at");
  const Prompt given = tokens_of(tokenizer, prompt, options.is_whole_text);
  models::GenerateOptions generation{
      .new_tokens = options.tokens,
      .temperature = options.temperature,
      .top_k = options.top_k,
      .context = context,
      .kept = given.prefix,
      .vocab_size = tokenizer.vocab_size(),
      .stop_ids = options.stop_ids.empty() ? config.eos_token_ids : options.stop_ids,
      .seed = options.seed,
  };
  if (!options.stops.empty())
    generation.done = [&](const std::vector<int64_t>& ids) { return ends_a_stop(tokenizer, ids, options.stops); };
  const std::vector<int64_t> ids = generate(given.ids, generation);
  const std::string text = tokenizer.decode(std::vector<int32_t>(ids.begin(), ids.end()), InvalidBytes::kReplaced);
  const auto prompt_tokens = static_cast<int64_t>(given.ids.size());
  // The model does not read the last token.
  const auto all_tokens = prompt_tokens + std::max<int64_t>(static_cast<int64_t>(ids.size()) - 1, 0);
  return {text.substr(0, stop_in(text, options.stops)),
          note_of(prompt_tokens, all_tokens, models::context_of(config, generation))};
}
}  // namespace

Sample sample_text(const models::Decoder& model, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options) {
  const auto generate = [&](const std::vector<int64_t>& ids, const models::GenerateOptions& how) {
    return models::generate(model, ids, how);
  };
  return sample_with(generate, model->config(), /*context=*/0, tokenizer, prompt, options);
}

Sample sample_text(const models::DecoderConfig& config, const models::NextLogits& next_logits, int64_t context,
                   const Tokenizer& tokenizer, const std::string& prompt, const SampleOptions& options) {
  const auto generate = [&](const std::vector<int64_t>& ids, const models::GenerateOptions& how) {
    return models::generate(config, next_logits, ids, how);
  };
  return sample_with(generate, config, context, tokenizer, prompt, options);
}

std::string held_out_prompt(const Tokenizer& tokenizer, const Corpus& corpus) {
  constexpr size_t kPromptTokens = 64;
  const auto seq = static_cast<size_t>(corpus.held_out_length(0));
  PackedBatch window;
  window.resize(1, seq);
  corpus.fill_held_out(0, window.row(0, seq));
  const auto end = window.tokens.begin() + static_cast<ptrdiff_t>(std::min(kPromptTokens, seq));
  return tokenizer.decode(std::vector<int32_t>(window.tokens.begin(), end));
}

}  // namespace stepc::train
