// WSAM (https://arxiv.org/abs/2305.15817): weighted sharpness-aware minimisation around any optimizer. A step has two
// gradients, at the weights and a little uphill of them:
//
//   loss(batch).backward();  wsam.ascend();  loss(batch).backward();  wsam.step();  wsam.zero_grad();
//
// Between ascend() and step() the parameters stand uphill; step() puts them back exactly before it updates them. The
// loss to report is the first.
#pragma once

#include <memory>
#include <optional>

#include "optim/optimizer.h"

namespace stepc::optim {

struct WsamOptions {
  double rho = 0.05;       // how far uphill
  double gamma = 0.9;      // weight of the sharpness: 0 is the wrapped optimizer, 0.5 SAM (when not decoupled)
  double epsilon = 1e-12;  // beside the gradient's norm
  bool adaptive = false;   // steps relative to each weight's size
  bool decoupled = true;   // the sharpness moves the weights by itself, not through the wrapped optimizer
  std::optional<double> max_norm = {};  // clips both gradients
};

class Wsam : public Optimizer {
 public:
  // Learning rate, step count, state and its names are those of the wrapped optimizer.
  Wsam(std::shared_ptr<Optimizer> wrapped, const WsamOptions& options);

  // Takes the gradients away and moves the parameters uphill along them.
  void ascend();
  void step(const at::Tensor& skip = {}) override;
  [[nodiscard]] NamedTensors named_state() const override { return wrapped_->named_state(); }
  void keep(const NamedTensors& more) override { wrapped_->keep(more); }

 private:
  void update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) override;
  void clip() const;

  std::shared_ptr<Optimizer> wrapped_;
  WsamOptions options_;
  // From ascend() to step(); one a parameter, undefined where there is no gradient.
  std::vector<at::Tensor> weights_, grads_;
};

}  // namespace stepc::optim
