// Checkpointing as torch.utils.checkpoint does it: a function runs without a graph, and once more, with the same random
// numbers and the same autocast state, when its gradient is asked for.
#pragma once

#include <functional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace stepc::test {

// bfloat16 autocast on or off while this lives; the cache of cast weights goes with it.
class AutocastScope {
 public:
  explicit AutocastScope(bool on) : was_on_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastScope() {
    if (!was_on_) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_on_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool was_on_;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  using Fn = std::function<at::Tensor()>;

  // `anchor` requires a gradient, so that the result does; it gets none.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*anchor*/, Fn fn) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    context->saved_data["random"] = generator.get_state();
    context->saved_data["autocast"] = at::autocast::is_autocast_enabled(at::kCPU);
    at::Tensor result = fn();  // without a graph: inside a Function nothing is recorded
    context->saved_data["fn"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(fn)));
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const at::Tensor now = generator.get_state();
    generator.set_state(context->saved_data["random"].toTensor());
    at::Tensor result;
    {
      const at::AutoGradMode with_grad(true);
      const AutocastScope autocast(context->saved_data["autocast"].toBool());
      result = static_cast<Held&>(*context->saved_data["fn"].toCapsule()).fn();
    }
    generator.set_state(now);
    torch::autograd::backward({result}, {gradients[0]});
    return {at::Tensor(), at::Tensor()};
  }

 private:
  struct Held : torch::CustomClassHolder {
    explicit Held(Fn held) : fn(std::move(held)) {}
    Fn fn;
  };
};

}  // namespace stepc::test
