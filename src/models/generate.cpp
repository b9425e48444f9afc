#include "models/generate.h"

#include <algorithm>

#include "base/check.h"

namespace stepc::models {
namespace {
// logits: (vocab), float32
int64_t draw(at::Tensor logits, const GenerateOptions& options, const at::Generator& generator) {
  if (options.temperature == 0.0) return logits.argmax().item<int64_t>();
  logits = logits / options.temperature;
  if (options.top_k > 0 && options.top_k < logits.numel()) {
    const auto [best, ids] = logits.topk(options.top_k);
    return ids[at::multinomial(best.softmax(-1), 1, /*replacement=*/false, generator).item<int64_t>()].item<int64_t>();
  }
  return at::multinomial(logits.softmax(-1), 1, /*replacement=*/false, generator).item<int64_t>();
}
}  // namespace

std::vector<int64_t> generate(Decoder model, const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  const int64_t model_vocab = model->config().vocab_size;
  const int64_t vocab = options.vocab_size > 0 ? options.vocab_size : model_vocab;
  USER_CHECK(!prompt.empty(), "the prompt is empty; give at least one token to continue");
  USER_CHECK(vocab <= model_vocab, "the tokenizer has {} tokens and the model only {}", vocab, model_vocab);
  USER_CHECK(options.temperature >= 0.0, "temperature is {}; expected 0 or more", options.temperature);
  USER_CHECK(options.context > 0, "context is {}; expected at least 1", options.context);
  for (const int64_t id : prompt)
    USER_CHECK(id >= 0 && id < model_vocab, "the prompt holds token {}; the model knows 0 to {}", id, model_vocab - 1);

  const torch::NoGradGuard no_grad;
  const EvaluationScope no_dropout(model);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<int64_t> ids = prompt;
  for (int64_t i = 0; i < options.new_tokens; ++i) {
    const int64_t seen = std::min<int64_t>(options.context, static_cast<int64_t>(ids.size()));
    const at::Tensor window = at::from_blob(ids.data() + ids.size() - seen, {1, seen}, at::kLong);
    const at::Tensor last = model->forward(window).select(1, seen - 1).select(0, 0).slice(0, 0, vocab);
    const int64_t next = draw(last.to(at::kFloat), options, generator);
    if (std::ranges::find(options.stop_ids, next) != options.stop_ids.end()) break;
    ids.push_back(next);
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
}

}  // namespace stepc::models
