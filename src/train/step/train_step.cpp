#include "train/step/train_step.h"

#include <utility>

#include "base/check.h"
#include "optim/clip.h"

namespace stepc::train {
namespace {

struct Gradient {
  at::Tensor loss, norm, overflow;  // norm before clipping; overflow undefined without a loss scaler
};

std::vector<at::Tensor> parameters_of(const ChosenOptimizer& chosen) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : chosen.optimizer->parameters()) parameters.push_back(parameter);
  return parameters;
}

at::ScalarType sum_type(const at::Tensor& gradient) { return at::promote_types(gradient.scalar_type(), at::kFloat); }

// Makes gradients of bfloat16 and float16 parameters float32, in which micro-batches' gradients are added up.
void widen_gradients(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& grad = parameter.mutable_grad();
    if (grad.defined()) grad = grad.to(sum_type(grad));
  }
}

// Adds the gradient of the micro-batch's loss, and returns the loss.
at::Tensor add_gradient(models::Decoder& model, const ChosenOptimizer& chosen, const Batch& micro,
                        const at::Tensor& token_count) {
  const at::Tensor loss = model->loss(micro.tokens, micro.labels, token_count, micro.documents);
  (chosen.scaler ? loss * chosen.scaler->scale() : loss).backward();
  return loss.detach();
}

// Clips the parameters' gradients.
Gradient finish_gradient(const ChosenOptimizer& chosen, const std::vector<at::Tensor>& parameters, double clip) {
  Gradient gradient;
  if (chosen.scaler) gradient.overflow = chosen.scaler->unscale_(parameters);
  gradient.norm = optim::clip_grad_norm_(parameters, clip);
  return gradient;
}

// Computes the batch's clipped gradient into the parameters. `adds_up`: it is a sum over micro-batches, here or
// elsewhere.
Gradient gradient_of(models::Decoder& model, const ChosenOptimizer& chosen, const Batch& batch, double clip,
                     bool adds_up) {
  const at::Tensor token_count = models::count_tokens(batch.labels);
  const std::vector<at::Tensor> parameters = parameters_of(chosen);
  at::Tensor sum;
  for (int64_t i = 0; i < batch.tokens.size(0); ++i) {
    const at::Tensor loss = add_gradient(model, chosen, batch.micro_batch(i), token_count);
    sum = sum.defined() ? sum + loss : loss;
    if (i == 0 && adds_up) widen_gradients(parameters);
  }
  Gradient gradient = finish_gradient(chosen, parameters, clip);
  gradient.loss = sum;
  return gradient;
}

void update(const ChosenOptimizer& chosen, const at::Tensor& overflow) {
  chosen.optimizer->step(overflow);
  if (chosen.scaler) chosen.scaler->update_(overflow);
}

}  // namespace

TrainStep make_train_step(models::Decoder model, ChosenOptimizer optimizer, double clip, int64_t micro_batches,
                          Turns turns) {
  return [model = std::move(model), chosen = std::move(optimizer), clip, adds_up = micro_batches > 1,
          blocks = turns == Turns::kInStep ? micro_batches : 1](const std::vector<at::Tensor>& tensors) mutable {
    const Batch batch = Batch::from_all_rows(tensors, blocks);
    const Gradient first = gradient_of(model, chosen, batch, clip, adds_up);
    at::Tensor overflow = first.overflow;
    if (chosen.wsam) {
      chosen.wsam->ascend();
      const Gradient uphill = gradient_of(model, chosen, batch, clip, adds_up);
      if (overflow.defined()) overflow = at::maximum(overflow, uphill.overflow);
    }
    update(chosen, overflow);
    chosen.optimizer->zero_grad();
    return std::tuple(first.loss, first.norm, overflow.defined() ? overflow : at::zeros_like(first.loss));
  };
}

}  // namespace stepc::train
