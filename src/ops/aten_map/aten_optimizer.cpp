// ATen map: fused optimizer updates, which come as lists and become one op a parameter, and the check of gradients
// before them.
#include <cmath>

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

// (gradients, found infinity, inverse of the scale); writes gradients, found infinity. How many elements are not finite
// is a sum, which ranks make together of their parts.
Ids check_and_unscale(M& m) {
  Ids out, counts;
  for (const TensorId gradient : m.tensors(0)) {
    const DType dtype = m.b.dtype(gradient);
    const bool is_small = dtype == DType::kBF16 || dtype == DType::kF16;
    const TensorId wide = m.b.cast(gradient, is_small ? DType::kF32 : dtype);
    const TensorId is_finite =
        m.b.add("lt", {m.b.add("abs", {wide}), m.b.full(HUGE_VAL, m.b.dtype(wide))});  // not so of what is no number
    const TensorId is_wrong = m.b.cast(m.b.add("logical_not", {is_finite}), DType::kF32);
    Shape dims;
    for (size_t d = 0; d < m.b.shape(wide).size(); ++d) dims.push_back(static_cast<int64_t>(d));
    counts.push_back(m.b.reshape(m.b.add("sum", {is_wrong}, {{"dims", dims}, {"keepdim", false}}), {1}));
    out.push_back(m.b.cast(m.b.add("mul", {wide, m.tensor(2, m.b.dtype(wide))}), dtype));
  }
  if (m.result_count() != out.size() + 1) M::unmapped("other lists are written than expected");
  if (counts.empty()) return {m.tensor(1)};
  const TensorId all = counts.size() == 1 ? counts[0] : m.b.add("concat", counts, {{"dim", int64_t{0}}});
  const TensorId count = m.b.add("sum", {all}, {{"dims", Shape{0}}, {"keepdim", false}});
  const TensorId found = m.tensor(1);
  const TensorId none = m.b.add("eq", {count, m.b.full(0, DType::kF32)});
  out.push_back(m.b.add("where", {none, found, m.b.full(1, m.b.dtype(found))}));
  return out;
}

}  // namespace

std::vector<AtenRow> aten_optimizer_rows() {
  return {
      {"_amp_foreach_non_finite_check_and_unscale_", check_and_unscale},
      {"_fused_adamw_", fused_adam<true>},
      {"_fused_adamw_.tensor_lr", fused_adam<true>},
      {"_fused_adam_", fused_adam<false>},
      {"_fused_adam_.tensor_lr", fused_adam<false>},
      {"_fused_sgd_", fused_sgd},
      {"_fused_sgd_.tensor_lr", fused_sgd},
  };
}

}  // namespace stepc
