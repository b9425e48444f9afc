#include "models/generate.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "base/check.h"

namespace stepc::models {
namespace {
// A long prompt is read in parts: masks are (part, all) and activations (part, width).
constexpr int64_t kPromptPart = 2048;

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

// The first `kept` of the ids and the last, `most` in all.
std::vector<int64_t> ends_of(const std::vector<int64_t>& ids, int64_t most, int64_t kept) {
  const auto count = static_cast<int64_t>(ids.size());
  if (count <= most) return ids;
  const int64_t first = std::min(kept, most - 1);
  std::vector<int64_t> ends(ids.begin(), ids.begin() + first);
  ends.insert(ends.end(), ids.end() - (most - first), ids.end());
  return ends;
}

// What the model sees of a text that grows.
class Reader {
 public:
  Reader(const std::vector<int64_t>& prompt, int64_t context, int64_t kept)
      : context_(context), kept_(kept), seen_(ends_of(prompt, context, kept)) {}

  void put(int64_t id) {
    seen_.push_back(id);
    if (static_cast<int64_t>(seen_.size()) <= context_) return;
    // By half and not by one token: positions change, so what stays is read anew.
    seen_ = ends_of(seen_, std::max<int64_t>(1, context_ / 2), kept_);
  }
  [[nodiscard]] const std::vector<int64_t>& seen() const { return seen_; }

 private:
  int64_t context_, kept_;
  std::vector<int64_t> seen_;
};

// With the keys and values of what was read kept.
class CachedModel {
 public:
  explicit CachedModel(Decoder model) : model_(std::move(model)) {}

  at::Tensor operator()(std::vector<int64_t> ids) {
    const auto count = static_cast<int64_t>(ids.size());
    if (cache_.length() >= count) cache_ = {};  // half of the text was left out
    at::Tensor logits;
    while (cache_.length() < count) {
      const int64_t begin = cache_.length();
      const int64_t part = std::min(kPromptPart, count - begin);
      const at::Tensor read = at::from_blob(ids.data() + begin, {1, part}, at::kLong);
      logits = model_->next_logits(read.to(model_->parameters().front().device()), cache_);
    }
    return logits.select(0, 0);
  }

 private:
  Decoder model_;
  KeyValueCache cache_;
};
}  // namespace

int64_t context_of(const DecoderConfig& config, const GenerateOptions& options) {
  const int64_t most = config.max_position_embeddings;
  if (options.context == 0) return most;
  return config.positions == Positions::kLearned ? std::min(options.context, most) : options.context;
}

std::vector<int64_t> generate(const DecoderConfig& config, const NextLogits& next_logits,
                              const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  const int64_t model_vocab = config.vocab_size;
  const int64_t vocab = options.vocab_size > 0 ? options.vocab_size : model_vocab;
  USER_CHECK(!prompt.empty(), "the prompt is empty; give at least one token to continue");
  USER_CHECK(vocab <= model_vocab, "the tokenizer has {} tokens and the model only {}", vocab, model_vocab);
  USER_CHECK(options.temperature >= 0.0, "temperature is {}; expected 0 or more", options.temperature);
  USER_CHECK(options.context >= 0, "context is {}; expected 0 or more", options.context);
  for (const int64_t id : prompt)
    USER_CHECK(id >= 0 && id < model_vocab, "the prompt holds token {}; the model knows 0 to {}", id, model_vocab - 1);

  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  Reader reader(prompt, context_of(config, options), options.kept);
  std::vector<int64_t> ids;
  while (static_cast<int64_t>(ids.size()) < options.new_tokens) {
    const at::Tensor logits = next_logits(reader.seen()).slice(0, 0, vocab);
    const int64_t next = draw(logits.to(at::kCPU, at::kFloat), options, generator);
    if (std::ranges::find(options.stop_ids, next) != options.stop_ids.end()) break;
    ids.push_back(next);
    if (options.done && options.done(ids)) break;
    reader.put(next);
  }
  return ids;
}

std::vector<int64_t> generate(Decoder model, const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  const at::NoGradGuard no_grad;
  const EvaluationScope no_dropout(model);
  return generate(model->config(), CachedModel(model), prompt, options);
}

}  // namespace stepc::models
