#include "train/evaluate.h"

#include <algorithm>
#include <array>
#include <span>

#include <torch/torch.h>

namespace stepc::train {
namespace {

// How much text each token stands for; the separator between files stands for none.
std::vector<int64_t> bytes_of_tokens(const Tokenizer& tokenizer) {
  std::vector<int64_t> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    bytes[static_cast<size_t>(id)] = static_cast<int64_t>(tokenizer.decode(std::array{id}).size());
  }
  if (const auto separator = tokenizer.added_token("<|endoftext|>")) bytes[static_cast<size_t>(*separator)] = 0;
  return bytes;
}

}  // namespace

std::vector<int64_t> spread_windows(int64_t windows, int64_t count) {
  const int64_t taken = std::min(windows, count);
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < taken; ++i) indices.push_back(i * windows / taken);
  return indices;
}

HeldOutLoss evaluate(models::Decoder model, const Tokenizer& tokenizer, const TextDataset& dataset, int64_t count,
                     int64_t batch) {
  const torch::NoGradGuard no_grad;
  const models::EvaluationScope no_dropout(model);
  const std::vector<int64_t> bytes = bytes_of_tokens(tokenizer);
  const std::vector<int64_t> windows = spread_windows(dataset.eval_windows(), count);
  const int64_t seq_len = dataset.seq_len();
  HeldOutLoss held_out;
  double nats = 0;
  for (size_t first = 0; first < windows.size(); first += static_cast<size_t>(batch)) {
    const int64_t rows = std::min<int64_t>(batch, static_cast<int64_t>(windows.size() - first));
    const at::Tensor tokens = at::empty({rows, seq_len + 1}, at::kLong);
    const std::span<int64_t> all(tokens.data_ptr<int64_t>(), static_cast<size_t>(tokens.numel()));
    for (int64_t row = 0; row < rows; ++row) {
      const auto width = static_cast<size_t>(seq_len + 1);
      const auto out = all.subspan(static_cast<size_t>(row) * width, width);
      dataset.fill_eval_batch(windows[first + static_cast<size_t>(row)], 1, out);
      for (const int64_t id : out.subspan(1)) held_out.bytes += bytes[static_cast<size_t>(id)];
    }
    const at::Tensor loss = model->loss(tokens.narrow(1, 0, seq_len), tokens.narrow(1, 1, seq_len));
    nats += loss.item<double>() * static_cast<double>(rows * seq_len);
    held_out.tokens += rows * seq_len;
  }
  held_out.nats_per_token = nats / static_cast<double>(held_out.tokens);
  held_out.nats_per_byte = nats / static_cast<double>(std::max<int64_t>(1, held_out.bytes));
  return held_out;
}

}  // namespace stepc::train
