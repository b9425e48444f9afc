// Optimizer updates, one parameter each: old values in, new values out. Hyperparameters are 0-dim f64 operands, because
// schedules change them from step to step.
#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;

// The first `tensors` operands have one shape, the rest are 0-dim numbers.
void check_update(const OpCall& call, size_t tensors) {
  for (size_t i = 1; i < tensors; ++i)
    INTERNAL_CHECK(call.in(i).shape == call.in(0).shape, "operand {} is {}", i, to_text(call.in(i)));
  for (size_t i = tensors; i < call.inputs.size(); ++i)
    INTERNAL_CHECK(call.in(i) == typed(DType::kF64, {}), "operand {} is {}", i, to_text(call.in(i)));
}
std::vector<TensorType> infer_adamw(const OpCall& call) {
  check_update(call, 4);
  return {call.in(0), call.in(2), call.in(3)};
}
std::vector<TensorType> infer_sgd(const OpCall& call) {
  check_update(call, 3);
  return {call.in(0), call.in(2)};
}
ShardingRule shard_update(const OpCall& call, const std::vector<TensorType>& results) {
  return elementwise_rule(call.inputs, results);
}
double flops_adamw(const OpCall&, const std::vector<TensorType>& results) { return 14 * count_of(results[0]); }
double flops_sgd(const OpCall&, const std::vector<TensorType>& results) { return 5 * count_of(results[0]); }

Ids decompose_adamw(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType acc = wide(b.dtype(in[0]));
  const TensorId one = b.full(1, DType::kF64);
  const auto number = [&](TensorId x) { return b.cast(x, acc); };
  const TensorId step = in[4], lr = in[5], beta1 = in[6], beta2 = in[7], decay = in[8], eps = in[9];
  const auto mix = [&](TensorId old, TensorId now, TensorId beta) {  // beta old + (1 - beta) now
    return b.add("add", {b.add("mul", {old, number(beta)}), b.add("mul", {now, number(b.add("sub", {one, beta}))})});
  };
  const auto correction = [&](TensorId beta) { return b.add("sub", {one, b.add("pow", {beta, step})}); };
  TensorId parameter = b.cast(in[0], acc);
  TensorId gradient = b.cast(in[1], acc);
  if (attrs.get<bool>("maximize")) gradient = b.add("neg", {gradient});
  if (attrs.get<bool>("decoupled"))
    parameter = b.add("mul", {parameter, number(b.add("sub", {one, b.add("mul", {lr, decay})}))});
  else
    gradient = b.add("add", {gradient, b.add("mul", {parameter, number(decay)})});
  const TensorId mean = mix(b.cast(in[2], acc), gradient, beta1);
  const TensorId square = mix(b.cast(in[3], acc), b.add("square", {gradient}), beta2);
  const TensorId root = b.add("div", {b.add("sqrt", {square}), number(b.add("sqrt", {correction(beta2)}))});
  const TensorId size = number(b.add("div", {lr, correction(beta1)}));
  const TensorId move = b.add("div", {b.add("mul", {mean, size}), b.add("add", {root, number(eps)})});
  return {b.cast(b.add("sub", {parameter, move}), b.dtype(in[0])), b.cast(mean, b.dtype(in[2])),
          b.cast(square, b.dtype(in[3]))};
}

Ids decompose_sgd(GraphBuilder& b, const Ids& in, const Attrs& attrs) {
  const DType acc = wide(b.dtype(in[0]));
  const auto scaled = [&](TensorId x, TensorId number) { return b.add("mul", {x, b.cast(number, acc)}); };
  const TensorId lr = in[3], momentum = in[4], dampening = in[5], decay = in[6];
  const TensorId parameter = b.cast(in[0], acc);
  TensorId gradient = b.cast(in[1], acc);
  if (attrs.get<bool>("maximize")) gradient = b.add("neg", {gradient});
  gradient = b.add("add", {gradient, scaled(parameter, decay)});
  const TensorId kept = b.add("sub", {b.full(1, DType::kF64), dampening});
  const TensorId velocity = b.add("add", {scaled(b.cast(in[2], acc), momentum), scaled(gradient, kept)});
  TensorId direction = velocity;
  if (attrs.get<bool>("nesterov")) direction = b.add("add", {gradient, scaled(velocity, momentum)});
  return {b.cast(b.add("sub", {parameter, scaled(direction, lr)}), b.dtype(in[0])), b.cast(velocity, b.dtype(in[2]))};
}

}  // namespace

OpFamily optimizer_ops() {
  const auto composite = static_cast<uint32_t>(Trait::kComposite);
  const AttrDef maximize{"maximize", AttrKind::kBool, AttrValue(false)};
  return {"optimizer",
          "One parameter's update; bf16 and f16 compute in f32.",
          {
              {"adamw_update",
               "(parameter, gradient, mean, mean square, step, lr, beta1, beta2, weight decay, eps) to new parameter, "
               "mean, mean square; decoupled: AdamW, else Adam",
               10,
               10,
               3,
               {maximize, {"decoupled", AttrKind::kBool, AttrValue(true)}},
               composite,
               infer_adamw,
               shard_update,
               flops_adamw,
               nullptr,
               decompose_adamw},
              {"sgd_update",
               "(parameter, gradient, velocity, lr, momentum, dampening, weight decay) to new parameter, velocity",
               7,
               7,
               2,
               {maximize, {"nesterov", AttrKind::kBool, AttrValue(false)}},
               composite,
               infer_sgd,
               shard_update,
               flops_sgd,
               nullptr,
               decompose_sgd},
          }};
}

}  // namespace stepc
