// What every optimizer promises: its whole state is tensors that exist from construction on, keep their storage, and
// have stable names. So a step is a tensor program that can be captured once and replayed, and a checkpoint is a list.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace stepc::optim {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// How parameters in bfloat16 or float16 keep updates that are smaller than their own rounding.
enum class LowPrecision {
  kMasterWeights,       // the update is made in a float32 copy of each; moments are float32
  kStochasticRounding,  // no copy: the updated value is rounded up or down at random, right on average; bfloat16 only
  kRounded,             // not at all: parameters and moments in their own dtype, as in PyTorch
};

struct UpdateRules {
  // Matrices decay; norms and biases, having one dimension, never do. Embeddings are matrices that a path names.
  bool decay_embeddings = true;
  LowPrecision low_precision = LowPrecision::kMasterWeights;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. Reads nothing back to the host. `skip`: a scalar tensor; where it is
  // not zero the step changes nothing, though it runs.
  virtual void step(const at::Tensor& skip = {});
  // Every state tensor, in a fixed order: "lr", "step", then "<parameter>.<state>" and, where there is a float32 copy,
  // "<parameter>.master", then what keep() added.
  [[nodiscard]] virtual NamedTensors named_state() const;

  // Adds tensors that belong to the step, such as a loss scaler's, to the state: captured, saved and loaded with it.
  virtual void keep(const NamedTensors& more) { kept_.insert(kept_.end(), more.begin(), more.end()); }

  // Drops the gradients.
  void zero_grad();

  // The learning rate lives in a tensor, so that a captured step sees the change. Call these outside of a step.
  void set_lr(double lr);
  [[nodiscard]] double lr() const;

  // Copies a named_state() in. Strict: throws UserError on a missing, unknown or misshapen tensor or another dtype, and
  // then leaves the state as it was.
  void load_state(const NamedTensors& state);

  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }

  // Changes parameter `index` in the precision in which its updates are made: `change` works in place.
  void edit(size_t index, const std::function<void(const at::Tensor& value)>& change);

 protected:
  struct Basics {
    std::string name;  // in errors
    double lr = 0;
    double weight_decay = 0;
    UpdateRules rules = {};
  };
  // Parameters are leaves that require gradients, each under a name of its own; throws UserError otherwise. Each gets a
  // zero tensor of its shape for every name in `states`. Master weights start from the parameters' present values: load
  // weights first.
  Optimizer(NamedTensors parameters, Basics basics, std::vector<std::string> states);
  // Shares parameters, learning rate and step count with an optimizer that this one wraps.
  Optimizer(std::string name, const Optimizer& wrapped);

  static constexpr double kBelowOne = 1.0 - 1e-12;

  struct Slot {
    std::vector<at::Tensor> states;
    at::Tensor master;  // undefined where there is none
    double weight_decay = 0;
  };
  // Computes what all parameters share, after step_ was counted up, and lets go of it: no tensor that a step makes may
  // outlive it, unless it is state.
  virtual void begin_step() {}
  virtual void end_step() {}
  // Updates `value` and the slot's states in place; both and grad have one dtype.
  virtual void update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) = 0;

  // "AdamW: beta1 is 2; expected a number from 0 to 1"
  void check_range(const char* what, double value, double low, double high) const;

  NamedTensors parameters_;
  at::Tensor lr_;    // float64 scalar: exactly the number that was set
  at::Tensor step_;  // float32 scalar: updates done

 private:
  Basics basics_;
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;  // one a parameter
  NamedTensors kept_;
};

// Whether weight decay applies, by name and shape.
bool decays(const std::string& name, const at::Tensor& parameter, const UpdateRules& rules);

}  // namespace stepc::optim
