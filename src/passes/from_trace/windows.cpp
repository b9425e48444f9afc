#include "passes/from_trace/windows.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace stepc {

namespace {

// base --order--> contiguous --reshape--> nested --slice--> --reshape--> cut --permutation--> --reshape--> units
// --expand--> target
struct ViewPlan {
  Shape order;                 // base's dimensions as they lie in memory
  Shape nested;                // that memory cut so that each walk of the target is one dimension's slice
  Shape starts, sizes, steps;  // on nested
  Shape cut;                   // the slice with a dimension for each of the target's
  Shape permutation;           // from cut's order to the target's
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

// Equal steps through memory: one dimension of the target, or several that follow each other without a gap.
struct Walk {
  int64_t size = 1, stride = 1;
};

// Cuts the memory for the walks, from the largest stride on. Which walk does not fit into what the one in front leaves;
// nullopt: all do.
std::optional<size_t> cut_memory(const std::vector<Walk>& walks, int64_t block, int64_t rest, ViewPlan& plan) {
  plan.nested = plan.starts = plan.sizes = plan.steps = {};
  const auto add = [&](int64_t size, int64_t start, int64_t taken, int64_t step) {
    plan.nested.push_back(size);
    plan.starts.push_back(start);
    plan.sizes.push_back(taken);
    plan.steps.push_back(step);
  };
  for (size_t w = 0; w < walks.size(); ++w) {
    const int64_t unit = std::gcd(block, walks[w].stride);
    const int64_t step = walks[w].stride / unit;
    const int64_t start = rest / unit;
    if (start + (walks[w].size - 1) * step >= block / unit) return w;
    add(block / unit, start, walks[w].size, step);
    block = unit;
    rest %= unit;
  }
  if (block > 1) add(block, rest, 1, 1);
  return std::nullopt;
}

// None: no chain of views says it (dimensions that overlap or straddle).
std::optional<ViewPlan> plan_view(const Window& base, const Window& target) {
  ViewPlan plan;
  plan.order = memory_order(base);
  plan.units = target.sizes;
  Shape dims;  // the target's dimensions that move through memory
  std::vector<Walk> walks;
  for (int64_t d : memory_order(target)) {
    const auto i = static_cast<size_t>(d);
    if (target.sizes[i] == 1) continue;
    if (target.strides[i] == 0) {
      plan.units[i] = 1;
    } else {
      dims.push_back(d);
      walks.push_back({target.sizes[i], target.strides[i]});
      plan.cut.push_back(target.sizes[i]);
    }
  }
  // Dimensions that do not begin where blocks do are walked together, as rows and columns of patches that a token
  // stands in front of.
  const int64_t elements = element_count(base.sizes), offset = target.offset - base.offset;
  while (const auto unfit = cut_memory(walks, elements, offset, plan)) {
    const size_t w = *unfit;
    if (w == 0 || walks[w - 1].stride != walks[w].size * walks[w].stride) return std::nullopt;
    walks[w - 1] = {walks[w - 1].size * walks[w].size, walks[w].stride};
    walks.erase(walks.begin() + static_cast<ptrdiff_t>(w));
  }
  // Position in `dims` of each of the target's moving dimensions, the left-over one last.
  plan.permutation.resize(dims.size());
  std::iota(plan.permutation.begin(), plan.permutation.end(), 0);
  std::ranges::sort(plan.permutation, {}, [&](int64_t i) { return dims[static_cast<size_t>(i)]; });
  if (plan.nested.size() > walks.size()) {
    plan.cut.push_back(1);
    plan.permutation.push_back(static_cast<int64_t>(dims.size()));
  }
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
  const TensorId cut = b.transpose(b.reshape(part, plan->cut), plan->permutation);
  return b.expand(b.reshape(cut, plan->units), target.sizes);
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
    const TensorId cut =
        b.transpose(b.reshape(value, permuted(plan->cut, plan->permutation)), inverse(plan->permutation));
    const TensorId part = b.reshape(cut, plan->sizes);
    const TensorId nested = b.reshape(memory, plan->nested);
    written = part;
    if (plan->sizes != plan->nested)
      written = b.add("update_slice", {nested, part}, {{"starts", plan->starts}, {"steps", plan->steps}});
    written = b.reshape(written, permuted(base_window.sizes, order));
  }
  return b.transpose(written, inverse(order));
}

}  // namespace stepc
