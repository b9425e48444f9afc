#include "ops/view_window.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

bool is_empty(const Shape& sizes) { return element_count(sizes) == 0; }
bool is_dense(const ViewWindow& window) { return stepc::is_dense(window.sizes, window.strides); }

// Dimensions of which each goes on where the next one ends are one run of evenly spaced elements.
struct Run {
  int64_t count = 1;
  int64_t stride = 1;
};
std::vector<Run> runs_of(const ViewWindow& window) {  // the last one first
  std::vector<Run> runs;
  for (size_t d = window.sizes.size(); d-- > 0;) {
    if (window.sizes[d] == 1) continue;
    if (!runs.empty() && window.strides[d] == runs.back().count * runs.back().stride)
      runs.back().count *= window.sizes[d];
    else
      runs.push_back({window.sizes[d], window.strides[d]});
  }
  return runs;
}

// Every dimension of the new shape has to lie in one run.
std::optional<ViewWindow> reshape(const Node& node, DType, const ViewWindow& operand) {
  ViewWindow view{node.attrs.get<Shape>("shape"), {}, operand.offset};
  view.strides = contiguous_strides(view.sizes);
  if (is_empty(view.sizes)) return view;
  const std::vector<Run> runs = runs_of(operand);
  size_t at = 0;
  int64_t used = 1;  // elements of run `at`
  for (size_t d = view.sizes.size(); d-- > 0;) {
    const int64_t size = view.sizes[d];
    if (size == 1) continue;
    if (used == runs[at].count) {
      ++at;
      used = 1;
    }
    if (runs[at].count % (used * size) != 0) return std::nullopt;
    view.strides[d] = used * runs[at].stride;
    used *= size;
  }
  return view;
}

std::optional<ViewWindow> transpose(const Node& node, DType, const ViewWindow& operand) {
  ViewWindow view{{}, {}, operand.offset};
  for (int64_t d : node.attrs.get<Shape>("permutation")) {
    view.sizes.push_back(operand.sizes[static_cast<size_t>(d)]);
    view.strides.push_back(operand.strides[static_cast<size_t>(d)]);
  }
  return view;
}

std::optional<ViewWindow> expand(const Node& node, DType, const ViewWindow& operand) {
  ViewWindow view{node.attrs.get<Shape>("shape"), {}, operand.offset};
  view.strides.assign(view.sizes.size(), 0);
  const size_t added = view.sizes.size() - operand.sizes.size();
  for (size_t d = 0; d < operand.sizes.size(); ++d)
    if (operand.sizes[d] == view.sizes[added + d]) view.strides[added + d] = operand.strides[d];
  return view;
}

std::optional<ViewWindow> slice(const Node& node, DType, const ViewWindow& operand) {
  ViewWindow view{node.attrs.get<Shape>("shape"), operand.strides, operand.offset};
  const Shape& starts = node.attrs.get<Shape>("starts");
  const Shape& steps = node.attrs.get<Shape>("steps");
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    view.offset += starts[d] * operand.strides[d];
    view.strides[d] *= steps[d];
  }
  return view;
}

std::optional<ViewWindow> as_strided(const Node& node, DType, const ViewWindow& operand) {
  if (!is_dense(operand)) return std::nullopt;
  return ViewWindow{node.attrs.get<Shape>("shape"), node.attrs.get<Shape>("strides"),
                    operand.offset + node.attrs.get<int64_t>("offset")};
}

std::optional<ViewWindow> bitcast(const Node& node, DType from, const ViewWindow& operand) {
  const int64_t old_size = size_of(from);
  const int64_t new_size = size_of(node.attrs.get<DType>("dtype"));
  if (!is_dense(operand) || operand.offset * old_size % new_size != 0) return std::nullopt;
  ViewWindow view{operand.sizes, {}, operand.offset * old_size / new_size};
  if (old_size != new_size) view.sizes.back() = view.sizes.back() * old_size / new_size;
  view.strides = contiguous_strides(view.sizes);
  return view;
}

std::optional<ViewWindow> reverse(const Node& node, DType, const ViewWindow& operand) {
  const bool moves = !is_empty(operand.sizes) && std::ranges::any_of(node.attrs.get<Shape>("dims"), [&](int64_t d) {
    return operand.sizes[static_cast<size_t>(d)] > 1;
  });
  if (moves) return std::nullopt;
  return operand;
}

using WindowFn = std::optional<ViewWindow> (*)(const Node& node, DType from, const ViewWindow& operand);
constexpr std::pair<std::string_view, WindowFn> kViews[] = {
    {"reshape", reshape},       {"transpose", transpose}, {"expand", expand},   {"slice", slice},
    {"as_strided", as_strided}, {"bitcast", bitcast},     {"reverse", reverse},
};

}  // namespace

std::optional<ViewWindow> window_of(const Node& node, DType from, const ViewWindow& operand) {
  const auto view = std::ranges::find(kViews, std::string_view(node.op), &std::pair<std::string_view, WindowFn>::first);
  INTERNAL_CHECK(!node.aten && view != std::end(kViews), "{} is no view", node.op);
  return view->second(node, from, operand);
}

Shape result_strides(const Node& node, const TensorType& type) {
  const OwnKernel kernel = node.aten ? OwnKernel::kNone : op_def(node.op).kernel;
  const bool has_heads = kernel == OwnKernel::kAttention || kernel == OwnKernel::kAttentionBackward;
  if (!has_heads || type.shape.size() != 4) return contiguous_strides(type.shape);
  // (batch, sequence, heads, dim), as the projections around attention read and write them.
  const Shape& shape = type.shape;
  return {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
}

}  // namespace stepc
