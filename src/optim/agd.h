// AGD (https://arxiv.org/abs/2312.01658): preconditions by the difference of successive gradients and switches to plain
// momentum where that is small. `delta` is a floor below which it switches, not something added as Adam's epsilon.
// About a tenth of AdamW's learning rate is a good start.
#pragma once

#include <optional>

#include "optim/optimizer.h"

namespace stepc::optim {

struct AgdOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double delta = 1e-5;  // 1e-14 for transformers
  double weight_decay = 0.0;
  bool decoupled_decay = true;  // else it is added to the gradient
  bool fixed_decay = false;     // decoupled and not times the learning rate
  bool amsgrad = false;         // the preconditioner never shrinks
  bool win = false;             // the two-step variant: an average of parameters that starts at zero; decay within it
  std::optional<double> clip = {};  // of each coordinate's update, before the learning rate
  UpdateRules rules = {};
};

// States: exp_avg, exp_avg_diff_sq; max_exp_avg_diff_sq with amsgrad, average with win.
class Agd : public Optimizer {
 public:
  Agd(NamedTensors parameters, const AgdOptions& options);

 private:
  void begin_step() override;
  void end_step() override;
  void update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) override;
  at::Tensor preconditioner(const Slot& slot, const at::Tensor& difference) const;

  AgdOptions options_;
  // Of the step that runs: 1 - beta1^t, the same of the step before (1 in the first), sqrt(1 - beta2^t), and the rate
  // lr * sqrt(1 - beta2^t) / (1 - beta1^t). float64 scalars, undefined between steps.
  at::Tensor correction_, previous_correction_, root_, rate_;
};

}  // namespace stepc::optim
