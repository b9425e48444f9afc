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

// The same in two parts, of which the first is taken once a micro-batch: plan and start do not grow with their number.
// Between the parts, and between steps, the gradients are held in tensors of their own (hold_gradients()).
// Of a pipeline's stages every step is; WSAM's, which is three parts, there alone.
bool is_in_parts(const ChosenOptimizer& optimizer, int64_t micro_batches, int64_t stages = 1);

// Makes them, zero, in the dtype in which they are added up, and what WSAM keeps between its gradients.
void hold_gradients(const ChosenOptimizer& optimizer);
std::vector<at::Tensor> held_gradients(const ChosenOptimizer& optimizer);

// What a micro-step takes of a batch: a micro-batch's tensors, the token count of the whole batch, and which
// micro-batch it is.
std::vector<at::Tensor> micro_tensors(const Batch& batch, int64_t index, const at::Tensor& token_count);
// Adds the micro-batch's gradient to what is held. Returns its part of the mean loss.
using MicroStep = std::function<at::Tensor(const std::vector<at::Tensor>& micro)>;
MicroStep make_micro_step(models::Decoder model, ChosenOptimizer optimizer);
// Clips, updates and sets the held gradients to zero. Returns what TrainStep does, but for the loss. Of WSAM it follows
// the second gradient and is given whether the first one has overflowed.
using UpdateStep = std::function<std::tuple<at::Tensor, at::Tensor>(const std::vector<at::Tensor>& overflow)>;
UpdateStep make_update_step(ChosenOptimizer optimizer, double clip);
// What WSAM does between its gradients, of the first, and the same results.
UpdateStep make_ascend_step(ChosenOptimizer optimizer, double clip);

}  // namespace stepc::train
