// Stochastic gradient descent with momentum, as torch.optim.SGD: weight decay is added to the gradient.
#pragma once

#include "optim/optimizer.h"

namespace stepc::optim {

struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  UpdateRules rules = {};
};

// State: momentum, where there is one.
class Sgd : public Optimizer {
 public:
  Sgd(NamedTensors parameters, const SgdOptions& options);

 private:
  void update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) override;

  SgdOptions options_;
};

}  // namespace stepc::optim
