// Lion (https://arxiv.org/abs/2302.06675): every coordinate moves by the learning rate, in the direction of the sign of
// an average; one moment instead of two.
#pragma once

#include "optim/optimizer.h"

namespace stepc::optim {

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;  // decoupled
  UpdateRules rules = {};
};

// State: exp_avg.
class Lion : public Optimizer {
 public:
  Lion(NamedTensors parameters, const LionOptions& options);

 private:
  void update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) override;

  LionOptions options_;
};

}  // namespace stepc::optim
