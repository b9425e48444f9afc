// A whole training step (micro-batches, clipping, update) as a function of tensors that reads nothing back to the host,
// so that it can be captured whole. Every micro-batch adds the sum of its token losses over the token count of the
// whole batch: how the batch is cut does not change what is minimised.
#pragma once

#include <functional>
#include <tuple>
#include <vector>

#include "models/decoder.h"
#include "train/optimizer_choice.h"

namespace stepc::train {

// Takes the tensors of a Batch (micro-batches, rows, seq). Returns scalars: the mean loss over the batch's tokens, the
// gradient's norm before clipping, and 1 where the gradient overflowed in float16 and the step was skipped, else 0.
using TrainStep = std::function<std::tuple<at::Tensor, at::Tensor, at::Tensor>(const std::vector<at::Tensor>& batch)>;

TrainStep make_train_step(models::Decoder model, ChosenOptimizer optimizer, double clip);

}  // namespace stepc::train
