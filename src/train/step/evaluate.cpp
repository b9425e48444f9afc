#include "train/step/evaluate.h"

#include <algorithm>
#include <array>
#include <span>

#include <ATen/ATen.h>

#include "train/step/batches.h"

namespace stepc::train {
namespace {

// The number of bytes of each token's text; added tokens, such as the separator between documents, have none. It is the
// length of the token twice less that of the token once, because a tokenizer may drop a leading space.
std::vector<int64_t> bytes_of_tokens(const Tokenizer& tokenizer) {
  std::vector<int64_t> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.added_token(tokenizer.spelling(id)) == id) continue;
    const size_t twice = tokenizer.decode(std::array{id, id}).size();
    bytes[static_cast<size_t>(id)] = static_cast<int64_t>(twice - tokenizer.decode(std::array{id}).size());
  }
  return bytes;
}

}  // namespace

std::vector<int64_t> spread_windows(int64_t windows, int64_t count) {
  const int64_t taken = std::min(windows, count);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < taken; ++i) indices.push_back(i * windows / taken);
  return indices;
}

bool has_held_out_labels(const Corpus& corpus, int64_t count) {
  const std::vector<int64_t> windows = spread_windows(static_cast<int64_t>(corpus.held_out_windows()), count);
  return std::ranges::any_of(windows, [&](int64_t window) {
    return held_out_batch(corpus, {window}).labels.ne(PackedRow::kNoLabel).any().item<bool>();
  });
}

double summed_loss(models::Decoder model, const Batch& rows) {
  const at::NoGradGuard no_grad;
  const models::EvaluationScope no_dropout(model);
  return model->summed_loss(rows.tokens, rows.labels, rows.documents);
}

HeldOutLoss evaluate(const SummedLossFn& loss, const Tokenizer& tokenizer, const Corpus& corpus, int64_t count,
                     int64_t batch) {
  const std::vector<int64_t> bytes = bytes_of_tokens(tokenizer);
  const std::vector<int64_t> windows = spread_windows(static_cast<int64_t>(corpus.held_out_windows()), count);
  HeldOutLoss held_out;
  double nats = 0;
  for (size_t first = 0; first < windows.size(); first += static_cast<size_t>(batch)) {
    const size_t last = std::min(windows.size(), first + static_cast<size_t>(batch));
    const Batch part = held_out_batch(
        corpus, {windows.begin() + static_cast<ptrdiff_t>(first), windows.begin() + static_cast<ptrdiff_t>(last)});
    nats += loss(part);
    for (const int64_t label : std::span(part.labels.data_ptr<int64_t>(), static_cast<size_t>(part.labels.numel()))) {
      if (label == PackedRow::kNoLabel) continue;
      ++held_out.tokens;
      held_out.bytes += bytes[static_cast<size_t>(label)];
    }
  }
  held_out.nats_per_token = nats / static_cast<double>(std::max<int64_t>(1, held_out.tokens));
  held_out.nats_per_byte = nats / static_cast<double>(std::max<int64_t>(1, held_out.bytes));
  return held_out;
}

}  // namespace stepc::train
