#include "train/step/batches.h"

#include <algorithm>
#include <span>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

BatchCopier::BatchCopier(const at::Device& device) : device_(device) {
  if (!device.is_cpu()) beside_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

Batch BatchCopier::operator()(const Batch& batch) const {
  if (!beside_) return batch;
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream computes = device.getStream(device_);
  std::vector<at::Tensor> tensors = batch.tensors();
  {
    const c10::StreamGuard on_beside(*beside_);
    for (at::Tensor& tensor : tensors) tensor = tensor.pin_memory().to(device_, /*non_blocking=*/true);
  }
  c10::Event copied(device_.type());
  copied.record(*beside_);
  copied.block(computes);
  for (const at::Tensor& tensor : tensors) device.recordDataPtrOnStream(tensor.storage().data_ptr(), computes);
  return Batch::from_tensors(tensors);
}

std::vector<at::Tensor> Batch::all_rows(int64_t ranks) const {
  std::vector<at::Tensor> rows = tensors();
  for (at::Tensor& tensor : rows) tensor = tensor.flatten(0, 1);
  return with_rows(from_tensors(rows), tokens.size(0) * ((tokens.size(1) + ranks - 1) / ranks * ranks)).tensors();
}

Batch with_rows(const Batch& batch, int64_t rows) {
  const int64_t missing = rows - batch.tokens.size(0);
  INTERNAL_CHECK_LE(0, missing);
  const auto filled = [&](const at::Tensor& tensor, int64_t with) {
    if (!tensor.defined() || missing == 0) return tensor;
    return at::cat({tensor, at::full({missing, tensor.size(1)}, with, tensor.options())});
  };
  return {filled(batch.tokens, 0), filled(batch.labels, PackedRow::kNoLabel), filled(batch.documents, 0)};
}

Batch Batch::from_all_rows(const std::vector<at::Tensor>& tensors, int64_t blocks) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.unflatten(0, {blocks, tensor.size(0) / blocks}));
  return from_tensors(out);
}

Batch Batch::micro_batch(int64_t index) const {
  const auto part = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.select(0, index) : tensor; };
  return {part(tokens), part(labels), part(documents)};
}

TrainBatches::TrainBatches(const Corpus& corpus, int64_t micro_batches, int64_t rows)
    : corpus_(corpus), micro_batches_(micro_batches), rows_(rows), samples_(micro_batches * rows) {
  for (const int64_t seq : corpus.mixture().lengths())
    batches_.emplace(seq, empty_batch(corpus, {micro_batches_, rows_, seq}));
}

const Batch& TrainBatches::of_step(int64_t step) {
  return fill(step, corpus_.mixture().length_of(first_sample(step), static_cast<size_t>(samples_)));
}

const Batch& TrainBatches::of_length(int64_t seq, int64_t step) {
  constexpr int64_t kStepsLookedAt = 1000;
  for (int64_t at = step; at < step + kStepsLookedAt; ++at)
    if (corpus_.mixture().length_of(first_sample(at), static_cast<size_t>(samples_)) == seq) return fill(at, seq);
  return fill(step, seq);
}

const Batch& TrainBatches::fill(int64_t step, int64_t seq) {
  corpus_.mixture().fill(first_sample(step), static_cast<size_t>(samples_), seq, packed_);
  const Batch& batch = batches_.at(seq);
  copy(packed_, batch);
  return batch;
}

std::optional<double> document_tokens(const Corpus& corpus) {
  if (!corpus.packs_documents()) return std::nullopt;
  constexpr size_t kRows = 256;
  PackedBatch rows;
  corpus.mixture().fill(0, kRows, rows);
  double tokens = 0, squares = 0;
  const size_t seq = rows.documents.size() / kRows;
  for (size_t i = 0, length = 1; i < rows.documents.size(); ++i, ++length) {
    const bool ends = (i + 1) % seq == 0 || rows.documents[i + 1] != rows.documents[i];
    if (!ends) continue;
    tokens += static_cast<double>(length);
    squares += static_cast<double>(length * length);
    length = 0;
  }
  return squares / tokens;
}

void check_indices(const Batch& batch, int64_t tokens) {
  for (const at::Tensor& tensor : {batch.tokens, batch.labels}) {
    const bool is_label = tensor.is_same(batch.labels);
    for (const int64_t id : std::span(tensor.data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())))
      USER_CHECK((id >= 0 && id < tokens) || (is_label && id == PackedRow::kNoLabel),
                 "the batch has the token {}, and the model knows 0 to {}: the data's cache is damaged or another "
                 "tokenizer's; delete it",
                 id, tokens - 1);
  }
}

Batch held_out_batch(const Corpus& corpus, const std::vector<int64_t>& windows) {
  uint64_t longest = 0;
  for (const int64_t window : windows)
    longest = std::max(longest, corpus.held_out_length(static_cast<uint64_t>(window)));
  const auto seq = static_cast<size_t>(corpus.mixture().length_for(longest));
  PackedBatch packed;
  packed.resize(windows.size(), seq);
  for (size_t row = 0; row < windows.size(); ++row)
    corpus.fill_held_out(static_cast<uint64_t>(windows[row]), packed.row(row, seq));
  Batch batch = empty_batch(corpus, {static_cast<int64_t>(windows.size()), static_cast<int64_t>(seq)});
  copy(packed, batch);
  return batch;
}

}  // namespace stepc::train
