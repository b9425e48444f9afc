#include "train/sample.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "models/generate.h"

namespace stepc::train {

std::string sample_text(const models::LlamaForCausalLM& model, const Tokenizer& tokenizer, const std::string& prompt,
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

std::string held_out_prompt(const Tokenizer& tokenizer, const TextDataset& dataset) {
  constexpr int64_t kPromptTokens = 64;
  std::vector<int64_t> window(static_cast<size_t>(dataset.seq_len() + 1));
  dataset.fill_eval_batch(0, 1, window);
  const int64_t taken = std::min(kPromptTokens, dataset.seq_len());
  return tokenizer.decode(std::vector<int32_t>(window.begin(), window.begin() + taken));
}

}  // namespace stepc::train
