// ATen map: fused optimizer updates, which come as lists and become one op a parameter.
#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;
using M = AtenMapper;

// (parameters, gradients, means, mean squares, largest squares, steps, lr, beta1, beta2, weight decay, eps, amsgrad,
// maximize, gradient scale, found infinity); writes parameters, gradients, means, squares, in this order
template <bool kDecoupled>
Ids fused_adam(M& m) {
  if (m.flag(11) || m.has(13) || m.has(14)) M::unmapped("amsgrad or a gradient scaler");
  const Ids parameters = m.tensors(0);
  const Ids gradients = m.tensors(1);
  const Ids means = m.tensors(2);
  const Ids squares = m.tensors(3);
  const Ids steps = m.tensors(5);
  const size_t n = parameters.size();
  // The schema says that gradients are written too; without a scaler they are not.
  if (m.result_count() != 4 * n) M::unmapped("other lists are written than expected");
  Ids out(4 * n);
  const auto number = [&](size_t i) { return m.tensor(i, DType::kF64); };
  for (size_t i = 0; i < n; ++i) {
    const TensorId step = m.b.reshape(m.b.cast(steps[i], DType::kF64), {});
    const Ids made = m.b.add_all("adamw_update",
                                 {parameters[i], gradients[i], means[i], squares[i], step, number(6), number(7),
                                  number(8), number(9), number(10)},
                                 {{"maximize", m.flag(12)}, {"decoupled", kDecoupled}});
    out[i] = made[0];
    out[n + i] = gradients[i];
    out[2 * n + i] = made[1];
    out[3 * n + i] = made[2];
  }
  return out;
}

// (parameters, gradients, velocities, weight decay, momentum, lr, dampening, nesterov, maximize, is first step,
// gradient scale, found infinity); writes parameters, gradients, velocities
Ids fused_sgd(M& m) {
  if (m.flag(9) || m.has(10) || m.has(11)) M::unmapped("a first step or a gradient scaler");
  const Ids parameters = m.tensors(0);
  const Ids gradients = m.tensors(1);
  const Ids velocities = m.tensors(2);
  const size_t n = parameters.size();
  const bool momentum = !velocities.empty();
  if (m.result_count() != (momentum ? 3 : 2) * n) M::unmapped("other lists are written than expected");
  Ids out(m.result_count());
  const auto number = [&](size_t i) { return m.tensor(i, DType::kF64); };
  for (size_t i = 0; i < n; ++i) {
    const TensorId velocity =
        momentum ? velocities[i] : m.b.full(0, m.b.dtype(parameters[i]), m.b.shape(parameters[i]));
    const TensorId dampening = momentum ? number(6) : m.b.full(0, DType::kF64);
    const Ids made =
        m.b.add_all("sgd_update", {parameters[i], gradients[i], velocity, number(5), number(4), dampening, number(3)},
                    {{"maximize", m.flag(8)}, {"nesterov", m.flag(7)}});
    out[i] = made[0];
    out[n + i] = gradients[i];
    if (momentum) out[2 * n + i] = made[1];
  }
  return out;
}

}  // namespace

std::vector<AtenRow> aten_optimizer_rows() {
  return {
      {"_fused_adamw_", fused_adam<true>}, {"_fused_adamw_.tensor_lr", fused_adam<true>},
      {"_fused_adam_", fused_adam<false>}, {"_fused_adam_.tensor_lr", fused_adam<false>},
      {"_fused_sgd_", fused_sgd},          {"_fused_sgd_.tensor_lr", fused_sgd},
  };
}

}  // namespace stepc
