// A whole training step (micro-batches, clipping, update) as functions of tensors that read nothing back to the host,
// so that they can be captured. Every micro-batch adds the sum of its token losses over the token count of the whole
// batch: how the batch is cut does not change what is minimised.
#pragma once

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "models/decoder.h"
#include "train/step/batches.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// Takes all_rows() of a Batch (micro-batches, rows, seq). Returns scalars: the mean loss over the batch's tokens, the
// gradient's norm before clipping, and 1 where the gradient overflowed in float16 and the step was skipped, else 0.
using TrainStep = std::function<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const std::vector<at::Tensor>& batch)>;
// Who takes the micro-batches one after the other: the step itself, or who runs it cuts it (passes/stages/cut_batch.h),
// and it is written for all rows at once. Gradients of several are added up in float32 either way.
enum class Turns : uint8_t { kInStep, kOutside };
TrainStep make_train_step(models::Decoder model, ChosenOptimizer optimizer, double clip, int64_t micro_batches,
                          Turns turns = Turns::kInStep);

}  // namespace stepc::train
