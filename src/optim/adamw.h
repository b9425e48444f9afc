// AdamW (decoupled weight decay) as a tensor program: bit-equal to torch.optim.AdamW(fused=True) where the parameters
// are float32. Matrices and embeddings decay; norms and biases, having one dimension, do not.
#pragma once

#include "optim/optimizer.h"

namespace stepc::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  // Keeps a float32 copy of each bfloat16 or float16 parameter and float32 moments, so that small updates are not lost
  // to rounding. Without, the state has the parameter's own dtype, as in PyTorch.
  bool master_weights = true;
};

class AdamW : public Optimizer {
 public:
  // Master weights start from the parameters' present values: load weights first.
  AdamW(NamedTensors parameters, const AdamWOptions& options);

  void step() override;
  // Adds "<parameter>.exp_avg", "<parameter>.exp_avg_sq" and, where there is one, "<parameter>.master".
  [[nodiscard]] NamedTensors named_state() const override;
  [[nodiscard]] const AdamWOptions& options() const { return options_; }

 private:
  struct Slot {
    at::Tensor exp_avg, exp_avg_sq;
    at::Tensor master;  // undefined where the parameter itself is updated
    double weight_decay;
  };
  AdamWOptions options_;
  std::vector<Slot> slots_;  // one a parameter
};

}  // namespace stepc::optim
