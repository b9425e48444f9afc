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

// Gradients of bfloat16 and float16 parameters become float32, in which those of micro-batches are added up.
void widen_gradients(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& grad = parameter.mutable_grad();
    if (grad.defined()) grad = grad.to(sum_type(grad));
  }
}

// Adds the gradient of its loss, which it returns.
at::Tensor add_gradient(models::Decoder& model, const ChosenOptimizer& chosen, const Batch& micro,
                        const at::Tensor& token_count) {
  const at::Tensor loss = model->loss(micro.tokens, micro.labels, token_count, micro.documents);
  (chosen.scaler ? loss * chosen.scaler->scale() : loss).backward();
  return loss.detach();
}

// Clips the gradient that lies at the parameters.
Gradient finish_gradient(const ChosenOptimizer& chosen, const std::vector<at::Tensor>& parameters, double clip) {
  Gradient gradient;
  if (chosen.scaler) gradient.overflow = chosen.scaler->unscale_(parameters);
  gradient.norm = optim::clip_grad_norm_(parameters, clip);
  return gradient;
}

// Leaves the batch's clipped gradient at the parameters. `adds_up`: it is a sum of micro-batches', here or elsewhere.
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

// Of a part that ends with gradients that count no more.
std::tuple<at::Tensor, at::Tensor> results_of(const ChosenOptimizer& chosen, const Gradient& gradient) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& held : held_gradients(chosen)) held.zero_();
  return {gradient.norm, gradient.overflow.defined() ? gradient.overflow : at::zeros_like(gradient.norm)};
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

// WSAM's two gradients a step, and the weights that it puts back, have to be held too.
bool is_in_parts(const ChosenOptimizer& optimizer, int64_t micro_batches, int64_t stages) {
  return stages > 1 || (micro_batches > 1 && optimizer.wsam == nullptr);
}

void hold_gradients(const ChosenOptimizer& optimizer) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_of(optimizer))
    parameter.mutable_grad() = at::zeros_like(parameter, parameter.options().dtype(sum_type(parameter)));
  if (optimizer.wsam) optimizer.wsam->hold();
}

std::vector<at::Tensor> held_gradients(const ChosenOptimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_of(optimizer)) gradients.push_back(parameter.grad());
  return gradients;
}

std::vector<at::Tensor> micro_tensors(const Batch& batch, int64_t index, const at::Tensor& token_count) {
  std::vector<at::Tensor> tensors = batch.micro_batch(index).tensors();
  tensors.push_back(token_count);
  tensors.push_back(at::scalar_tensor(index, at::kLong));
  return tensors;
}

MicroStep make_micro_step(models::Decoder model, ChosenOptimizer optimizer) {
  return [model = std::move(model), chosen = std::move(optimizer)](const std::vector<at::Tensor>& tensors) mutable {
    const std::vector<at::Tensor> batch(tensors.begin(), tensors.end() - 2);
    return add_gradient(model, chosen, Batch::from_tensors(batch), tensors[batch.size()]);
  };
}

UpdateStep make_update_step(ChosenOptimizer optimizer, double clip) {
  return [chosen = std::move(optimizer), clip](const std::vector<at::Tensor>& overflow) {
    Gradient gradient = finish_gradient(chosen, parameters_of(chosen), clip);
    if (gradient.overflow.defined() && !overflow.empty())
      gradient.overflow = at::maximum(overflow[0], gradient.overflow);
    update(chosen, gradient.overflow);
    return results_of(chosen, gradient);
  };
}

UpdateStep make_ascend_step(ChosenOptimizer optimizer, double clip) {
  return [chosen = std::move(optimizer), clip](const std::vector<at::Tensor>& /*overflow*/) {
    const Gradient gradient = finish_gradient(chosen, parameters_of(chosen), clip);
    chosen.wsam->ascend();
    return results_of(chosen, gradient);
  };
}

}  // namespace stepc::train
