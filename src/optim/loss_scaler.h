// Dynamic loss scaling for float16, without a host read: the loss is scaled up so that small gradients survive, and a
// step whose gradients overflowed is skipped by arithmetic. One step:
//
//   (loss * scaler.scale()).backward();
//   const at::Tensor overflow = scaler.unscale_(parameters);
//   clip_grad_norm_(parameters, 1.0);
//   optimizer.step(overflow);  scaler.update_(overflow);
//
// optimizer.keep(scaler.named_state()) makes its state part of the optimizer's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace stepc::optim {

struct LossScalerOptions {
  double initial = 65536.0;
  double growth = 2.0;   // after `interval` steps without overflow
  double backoff = 0.5;  // after a step with one
  int64_t interval = 2000;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {}, at::Device device = at::kCPU);

  // A float32 scalar.
  [[nodiscard]] const at::Tensor& scale() const { return scale_; }
  // Divides the gradients by the scale, in float32, which they have from then on. Returns a float32 scalar: 1 where one
  // of them is infinite or not a number, else 0.
  at::Tensor unscale_(const std::vector<at::Tensor>& parameters) const;
  void update_(const at::Tensor& overflow);

  // "loss_scale" and "loss_scale.good_steps".
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named_state() const;

 private:
  LossScalerOptions options_;
  at::Tensor scale_;       // float32
  at::Tensor good_steps_;  // int32
};

}  // namespace stepc::optim
