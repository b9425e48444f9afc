// What every optimizer promises: its whole state is tensors that exist from construction on, keep their storage, and
// have stable names. So a step is a tensor program that can be captured once and replayed, and a checkpoint is a list.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace stepc::optim {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Optimizer {
 public:
  // Parameters are leaves that require gradients, each under a name of its own; throws UserError otherwise.
  Optimizer(NamedTensors parameters, double lr);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Reads nothing back to the host.
  virtual void step() = 0;
  // Every state tensor: "lr", "step", "<parameter>.exp_avg", ... in a fixed order.
  [[nodiscard]] virtual NamedTensors named_state() const;

  // Drops the gradients.
  void zero_grad();

  // The learning rate lives in a tensor, so that a captured step sees the change. Call these outside of a step.
  void set_lr(double lr);
  [[nodiscard]] double lr() const;

  // Copies a named_state() in. Strict: throws UserError on a missing, unknown or misshapen tensor or another dtype, and
  // then leaves the state as it was.
  void load_state(const NamedTensors& state);

  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }

 protected:
  NamedTensors parameters_;
  at::Tensor lr_;    // float64 scalar: exactly the number that was set
  at::Tensor step_;  // float32 scalar: updates done
};

}  // namespace stepc::optim
