// AdamW (decoupled weight decay): bit-equal to torch.optim.AdamW(fused=True) where the parameters are float32.
#pragma once

#include "optim/optimizer.h"

namespace stepc::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  UpdateRules rules = {};
};

// States: exp_avg, exp_avg_sq.
class AdamW : public Optimizer {
 public:
  AdamW(NamedTensors parameters, const AdamWOptions& options);
  [[nodiscard]] const AdamWOptions& options() const { return options_; }

 private:
  void update(const Slot& slot, const at::Tensor& value, const at::Tensor& grad) override;

  AdamWOptions options_;
};

}  // namespace stepc::optim
