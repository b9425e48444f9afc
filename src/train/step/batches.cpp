#include "train/step/batches.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "base/check.h"

namespace stepc::train {
namespace {

Batch empty_batch(const Corpus& corpus, at::IntArrayRef shape) {
  Batch batch = {at::empty(shape, at::kLong), at::empty(shape, at::kLong), {}};
  if (corpus.packs_documents()) batch.documents = at::empty(shape, at::kLong);
  return batch;
}

void copy(const std::vector<int64_t>& values, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  INTERNAL_CHECK_EQ(values.size(), static_cast<size_t>(tensor.numel()));
  std::ranges::copy(values, tensor.data_ptr<int64_t>());
}

void copy(const PackedBatch& packed, const Batch& batch) {
  copy(packed.tokens, batch.tokens);
  copy(packed.labels, batch.labels);
  copy(packed.documents, batch.documents);
}

}  // namespace

std::vector<at::Tensor> Batch::tensors() const {
  return documents.defined() ? std::vector{tokens, labels, documents} : std::vector{tokens, labels};
}

Batch Batch::from_tensors(const std::vector<at::Tensor>& tensors) {
  INTERNAL_CHECK(tensors.size() == 2 || tensors.size() == 3, "{}", tensors.size());
  return {tensors[0], tensors[1], tensors.size() == 3 ? tensors[2] : at::Tensor()};
}

Batch Batch::micro_batch(int64_t index) const {
  const auto part = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.select(0, index) : tensor; };
  return {part(tokens), part(labels), part(documents)};
}

TrainBatches::TrainBatches(const Corpus& corpus, int64_t micro_batches, int64_t rows)
    : corpus_(corpus),
      samples_(micro_batches * rows),
      batch_(empty_batch(corpus, {micro_batches, rows, corpus.mixture().seq_len()})) {}

const Batch& TrainBatches::of_step(int64_t step) {
  corpus_.mixture().fill(static_cast<uint64_t>(step * samples_), static_cast<size_t>(samples_), packed_);
  copy(packed_, batch_);
  return batch_;
}

Batch held_out_batch(const Corpus& corpus, const std::vector<int64_t>& windows) {
  const auto seq = static_cast<size_t>(corpus.mixture().seq_len());
  PackedBatch packed;
  packed.resize(windows.size(), seq);
  for (size_t row = 0; row < windows.size(); ++row)
    corpus.fill_held_out(static_cast<uint64_t>(windows[row]), packed.row(row, seq));
  Batch batch = empty_batch(corpus, {static_cast<int64_t>(windows.size()), static_cast<int64_t>(seq)});
  copy(packed, batch);
  return batch;
}

}  // namespace stepc::train
