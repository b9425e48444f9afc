#include "train/train_step.h"

#include <utility>

#include "optim/clip.h"
#include "train/batches.h"

namespace stepc::train {
namespace {

struct Gradient {
  at::Tensor loss, norm, overflow;  // norm before clipping; overflow undefined without a loss scaler
};

// Gradients of bfloat16 and float16 parameters become float32, in which those of further micro-batches are added.
void widen_gradients(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& grad = parameter.mutable_grad();
    if (grad.defined()) grad = grad.to(at::promote_types(grad.scalar_type(), at::kFloat));
  }
}

// Leaves the batch's clipped gradient at the parameters.
Gradient gradient_of(models::Decoder& model, const ChosenOptimizer& chosen, const Batch& batch, double clip) {
  const at::Tensor token_count = models::count_tokens(batch.labels);
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : chosen.optimizer->parameters()) parameters.push_back(parameter);
  Gradient gradient;
  const int64_t micro_batches = batch.tokens.size(0);
  for (int64_t i = 0; i < micro_batches; ++i) {
    const Batch micro = batch.micro_batch(i);
    const at::Tensor loss = model->loss(micro.tokens, micro.labels, token_count, micro.documents);
    (chosen.scaler ? loss * chosen.scaler->scale() : loss).backward();
    gradient.loss = gradient.loss.defined() ? gradient.loss + loss.detach() : loss.detach();
    if (i == 0 && micro_batches > 1) widen_gradients(parameters);
  }
  if (chosen.scaler) gradient.overflow = chosen.scaler->unscale_(parameters);
  gradient.norm = optim::clip_grad_norm_(parameters, clip);
  return gradient;
}

}  // namespace

TrainStep make_train_step(models::Decoder model, ChosenOptimizer optimizer, double clip) {
  return
      [model = std::move(model), chosen = std::move(optimizer), clip](const std::vector<at::Tensor>& tensors) mutable {
        const Batch batch = Batch::from_tensors(tensors);
        const Gradient first = gradient_of(model, chosen, batch, clip);
        at::Tensor overflow = first.overflow;
        if (chosen.wsam) {
          chosen.wsam->ascend();
          const Gradient uphill = gradient_of(model, chosen, batch, clip);
          if (overflow.defined()) overflow = at::maximum(overflow, uphill.overflow);
        }
        chosen.optimizer->step(overflow);
        if (chosen.scaler) chosen.scaler->update_(overflow);
        chosen.optimizer->zero_grad();
        return std::tuple(first.loss, first.norm, overflow.defined() ? overflow : at::zeros_like(first.loss));
      };
}

}  // namespace stepc::train
