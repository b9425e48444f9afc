#include "passes/from_trace/windows.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace stepc {

namespace {

// base --order--> contiguous --reshape--> nested --slice--> --permutation--> --reshape--> units --expand--> target
struct ViewPlan {
  Shape order;                 // base's dimensions as they lie in memory
  Shape nested;                // that memory cut so that each dimension of the target is one dimension's slice
  Shape starts, sizes, steps;  // on nested
  Shape permutation;           // from nested's order to the target's
  Shape units;                 // the target's shape with 1 where it repeats
};

Shape inverse(const Shape& permutation) {
  Shape out(permutation.size());
  for (size_t d = 0; d < permutation.size(); ++d) out[static_cast<size_t>(permutation[d])] = static_cast<int64_t>(d);
  return out;
}
Shape permuted(const Shape& shape, const Shape& permutation) {
  Shape out;
  for (int64_t d : permutation) out.push_back(shape[static_cast<size_t>(d)]);
  return out;
}

// None: no chain of views says it (dimensions that overlap or straddle).
std::optional<ViewPlan> plan_view(const Window& base, const Window& target) {
  ViewPlan plan;
  plan.order = memory_order(base);
  plan.units = target.sizes;
  Shape dims;  // the target's dimensions that move through memory
  for (int64_t d : memory_order(target)) {
    const auto i = static_cast<size_t>(d);
    if (target.sizes[i] == 1) continue;
    if (target.strides[i] == 0)
      plan.units[i] = 1;
    else
      dims.push_back(d);
  }
  int64_t block = element_count(base.sizes);
  int64_t rest = target.offset - base.offset;
  for (int64_t d : dims) {
    const int64_t stride = target.strides[static_cast<size_t>(d)];
    const int64_t size = target.sizes[static_cast<size_t>(d)];
    const int64_t unit = std::gcd(block, stride);
    const int64_t step = stride / unit;
    const int64_t start = rest / unit;
    if (start + (size - 1) * step >= block / unit) return std::nullopt;
    plan.nested.push_back(block / unit);
    plan.starts.push_back(start);
    plan.sizes.push_back(size);
    plan.steps.push_back(step);
    block = unit;
    rest %= unit;
  }
  if (block > 1) {
    plan.nested.push_back(block);
    plan.starts.push_back(rest);
    plan.sizes.push_back(1);
    plan.steps.push_back(1);
  }
  // Position in `dims` of each of the target's moving dimensions, the left-over one last.
  plan.permutation.resize(dims.size());
  std::iota(plan.permutation.begin(), plan.permutation.end(), 0);
  std::ranges::sort(plan.permutation, {}, [&](int64_t i) { return dims[static_cast<size_t>(i)]; });
  if (block > 1) plan.permutation.push_back(static_cast<int64_t>(dims.size()));
  return plan;
}

TensorId in_memory_order(GraphBuilder& b, TensorId base, const Shape& order) { return b.transpose(base, order); }

}  // namespace

Shape memory_order(const Window& window) {
  Shape order(window.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  // Dimensions of size 1 have strides that mean nothing: they sort with the dimension after them.
  Shape key = window.strides;
  for (size_t d = key.size(); d-- > 0;)
    if (window.sizes[d] == 1) key[d] = d + 1 < key.size() ? key[d + 1] : 0;
  std::ranges::stable_sort(order, std::greater<>(), [&](int64_t d) { return key[static_cast<size_t>(d)]; });
  return order;
}

bool is_dense(const Window& window) { return fills_block(window.sizes, window.strides); }

bool covers(const Window& base_window, const Window& target) {
  return is_dense(target) && target.offset == base_window.offset &&
         element_count(target.sizes) == element_count(base_window.sizes);
}

TensorId view_of(GraphBuilder& b, TensorId base, const Window& base_window, const Window& target) {
  if (base_window == target) return base;
  if (element_count(target.sizes) == 0) return b.full(0, b.dtype(base), target.sizes);
  const Shape order = memory_order(base_window);
  const std::optional<ViewPlan> plan = plan_view(base_window, target);
  const TensorId memory = in_memory_order(b, base, order);
  if (!plan)
    return b.add(
        "as_strided", {memory},
        {{"shape", target.sizes}, {"strides", target.strides}, {"offset", target.offset - base_window.offset}});
  const TensorId part = b.slice(b.reshape(memory, plan->nested), plan->starts, plan->sizes, plan->steps);
  return b.expand(b.reshape(b.transpose(part, plan->permutation), plan->units), target.sizes);
}

TensorId write_view(GraphBuilder& b, TensorId base, const Window& base_window, const Window& target, TensorId value) {
  if (element_count(target.sizes) == 0) return base;
  const Shape order = memory_order(base_window);
  const std::optional<ViewPlan> plan = plan_view(base_window, target);
  const TensorId memory = in_memory_order(b, base, order);
  TensorId written;
  if (!plan || plan->units != target.sizes) {
    written = b.add("as_strided_scatter", {memory, value},
                    {{"strides", target.strides}, {"offset", target.offset - base_window.offset}});
  } else {
    const TensorId part =
        b.transpose(b.reshape(value, permuted(plan->sizes, plan->permutation)), inverse(plan->permutation));
    const TensorId nested = b.reshape(memory, plan->nested);
    written = part;
    if (plan->sizes != plan->nested)
      written = b.add("update_slice", {nested, part}, {{"starts", plan->starts}, {"steps", plan->steps}});
    written = b.reshape(written, permuted(base_window.sizes, order));
  }
  return b.transpose(written, inverse(order));
}

}  // namespace stepc
