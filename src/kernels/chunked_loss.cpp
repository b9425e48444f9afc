#include "kernels/chunked_loss.h"

#include <string>
#include <utility>

#include "ops/graph_builder.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

// A row's log-probabilities are shifted - log_sum. The gradient of the logits is that of the log-probabilities less
// their probabilities times its sum, which needs no sweep: only the target's differs from one number a row.
Graph loss_rows(const Attrs& attrs, DType dtype, int64_t tokens, int64_t classes, size_t operands) {
  GraphBuilder b;
  const DType acc = wide(dtype);
  const Shape rows = {tokens}, column = {tokens, 1}, all = {tokens, classes};
  const auto input = [&](DType type, const Shape& shape) {
    const std::string key = std::to_string(b.graph().inputs.size());
    return b.graph().add_input({InputKind::kCaptured, key, {}, {}, 0}, {type, shape});
  };
  const auto output = [&](TensorId id) { b.graph().outputs.emplace_back().tensor = id; };
  const TensorId logits = input(dtype, all);
  const TensorId target = input(DType::kI64, rows);
  const TensorId zero = b.full(0, acc);
  const TensorId count = b.full(static_cast<double>(classes), acc);

  const TensorId x = b.cast(logits, acc);
  const TensorId top = b.add("max", {x}, {{"dims", Shape{1}}, {"keepdim", true}});
  const TensorId shifted = b.add("sub", {x, top});
  const TensorId log_sum = b.add("log", {b.sum(b.add("exp", {shifted}), {1}, true)});
  const TensorId ignored = b.full(static_cast<double>(attrs.get<int64_t>("ignore_index")), DType::kI64);
  const TensorId counts = b.add("ne", {target, ignored});
  const TensorId index = b.add("iota", {}, {{"shape", all}, {"dtype", DType::kI64}, {"dim", int64_t{1}}});
  const TensorId hit = b.add("eq", {index, b.reshape(target, column)});
  const TensorId picked = b.sum(b.add("where", {hit, shifted, zero}), {1});
  const TensorId log_sums = b.reshape(log_sum, rows);
  output(b.add("where", {counts, b.add("sub", {log_sums, picked}), zero}));
  output(b.add("sub", {b.sum(shifted, {1}), b.add("mul", {log_sums, count})}));
  if (operands == 3) return b.take();

  const TensorId off = b.add("where", {counts, b.add("neg", {input(acc, rows)}), zero});
  TensorId gradient = b.add("where", {hit, b.reshape(off, column), zero});
  TensorId total = off;
  if (operands > 4) {
    const TensorId of_sum = input(acc, rows);
    gradient = b.add("add", {gradient, b.reshape(of_sum, column)});
    total = b.add("add", {total, b.add("mul", {of_sum, count})});
  }
  const TensorId share = b.add("mul", {b.add("exp", {b.add("sub", {shifted, log_sum})}), b.reshape(total, column)});
  output(b.cast(b.add("sub", {gradient, share}), dtype));
  return b.take();
}

}  // namespace stepc
