// Samples of a Corpus as the tensors that a step takes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "data/corpus.h"

namespace stepc::train {

// int64, all of one shape. Labels are the tokens that follow, or -100 where the loss counts nothing. Documents number
// the documents of a row; undefined where every row is one, which spares the attention its mask.
struct Batch {
  at::Tensor tokens, labels, documents;

  // What is defined, in this order: the arguments of a captured step.
  [[nodiscard]] std::vector<at::Tensor> tensors() const;
  static Batch from_tensors(const std::vector<at::Tensor>& tensors);
  // Row block `index` of a (blocks, rows, seq) batch.
  [[nodiscard]] Batch micro_batch(int64_t index) const;
  // tensors() of such a batch with all rows in the first dimension, which is what a step is split along; and back.
  // `ranks`: with as many further rows that count nothing that each micro-batch has as many rows on each of so many.
  [[nodiscard]] std::vector<at::Tensor> all_rows(int64_t ranks = 1) const;
  static Batch from_all_rows(const std::vector<at::Tensor>& tensors, int64_t blocks);
};

// Copies batches from the host to a device: from page-locked memory, on a stream of its own, so that neither a copy nor
// the host waits for the step that runs there. The current stream waits for the copy. On the CPU a batch stays as it
// is.
class BatchCopier {
 public:
  explicit BatchCopier(const at::Device& device);
  [[nodiscard]] Batch operator()(const Batch& batch) const;

 private:
  at::Device device_;
  std::optional<c10::Stream> beside_;
};

// Of (rows, seq): with further rows that count nothing, so many in all.
Batch with_rows(const Batch& batch, int64_t rows);

// The batches of training steps: step s has samples s * micro_batches * rows and on, so a batch depends on nothing but
// the corpus and the step. The tensors are filled anew for each step. With buckets the rows of a step, all its
// micro-batches', are padded to the least of them that holds its longest row.
class TrainBatches {
 public:
  TrainBatches(const Corpus& corpus, int64_t micro_batches, int64_t rows);
  // (micro_batches, rows, seq)
  const Batch& of_step(int64_t step);
  // Of the first step from `step` on that has rows of `seq` tokens; where none of the next ones has, the rows of
  // `step`, cut or padded.
  const Batch& of_length(int64_t seq, int64_t step);

 private:
  const Batch& fill(int64_t step, int64_t seq);
  [[nodiscard]] uint64_t first_sample(int64_t step) const { return static_cast<uint64_t>(step * samples_); }

  const Corpus& corpus_;
  int64_t micro_batches_, rows_, samples_;
  PackedBatch packed_;
  std::map<int64_t, Batch> batches_;  // by length
};

// Tokens of the document that a token stands in, on average over the first samples of a corpus whose rows pack
// documents; nullopt where every row is one.
std::optional<double> document_tokens(const Corpus& corpus);

// UserError for a token or a label that a model with so many does not know.
void check_indices(const Batch& batch, int64_t tokens);

// Held-out windows as a (windows, seq) batch, padded as a step's rows.
Batch held_out_batch(const Corpus& corpus, const std::vector<int64_t>& windows);

}  // namespace stepc::train
