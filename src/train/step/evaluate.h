// Held-out loss: the mean over the predicted tokens of a fixed set of windows, so that two evaluations compare.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/corpus.h"
#include "data/tokenizer.h"
#include "models/decoder.h"
#include "train/step/batches.h"

namespace stepc::train {

struct HeldOutLoss {
  double nats_per_token = 0;
  double nats_per_byte = 0;  // comparable between tokenizers
  int64_t tokens = 0;
  int64_t bytes = 0;
};

// `count` of `windows` indices, evenly spread, first one first; all of them when there are not more.
std::vector<int64_t> spread_windows(int64_t windows, int64_t count);

// Whether the windows that evaluate() takes have a label that it counts.
bool has_held_out_labels(const Corpus& corpus, int64_t count);

// Of rows (rows, seq): the sum of the token losses, without dropout and without gradients.
using SummedLossFn = std::function<double(const Batch& rows)>;
double summed_loss(models::Decoder model, const Batch& rows);

// At most `count` windows, `batch` at a time. Counted are the labels that training would learn.
HeldOutLoss evaluate(const SummedLossFn& loss, const Tokenizer& tokenizer, const Corpus& corpus, int64_t count,
                     int64_t batch);

}  // namespace stepc::train
