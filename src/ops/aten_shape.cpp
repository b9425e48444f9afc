// ATen map: calls that move elements to new memory. (Views need no row: they are windows on a storage.)
#include <algorithm>
#include <numeric>

#include "ops/aten_map.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;
using M = AtenMapper;

Ids cat(M& m) {
  const DType dtype = m.result(0).dtype;
  const size_t rank = m.result(0).shape.size();
  Ids parts;
  for (TensorId part : m.tensors(0))
    if (m.b.shape(part).size() == rank) parts.push_back(m.b.cast(part, dtype));  // ATen lets empty 1-dim tensors pass
  return {parts.size() == 1 ? parts[0] : m.b.add("concat", parts, {{"dim", M::dim(m.integer(1, 0), rank)}})};
}
Ids stack(M& m) {
  const size_t rank = m.result(0).shape.size();
  const int64_t dim = M::dim(m.integer(1, 0), rank);
  Ids parts;
  for (TensorId part : m.tensors(0)) {
    Shape shape = m.b.shape(part);
    shape.insert(shape.begin() + dim, 1);
    parts.push_back(m.b.reshape(m.b.cast(part, m.result(0).dtype), shape));
  }
  return {m.b.add("concat", parts, {{"dim", dim}})};
}
Ids reshaped(M& m) { return {m.b.reshape(m.tensor(0), m.result(0).shape)}; }
Ids repeat(M& m) {
  const Shape counts = m.ints(1);
  TensorId x = m.tensor(0);
  Shape shape = m.b.shape(x);
  shape.insert(shape.begin(), counts.size() - shape.size(), 1);
  Shape units;
  Shape wide;
  for (size_t d = 0; d < shape.size(); ++d) {
    units.insert(units.end(), {1, shape[d]});
    wide.insert(wide.end(), {counts[d], shape[d]});
  }
  return {m.b.reshape(m.b.expand(m.b.reshape(x, units), wide), m.result(0).shape)};
}
Ids flip(M& m) {
  const TensorId x = m.tensor(0);
  Shape dims;
  for (int64_t d : m.ints(1)) dims.push_back(M::dim(d, m.b.shape(x).size()));
  return {m.b.add("reverse", {x}, {{"dims", dims}})};
}
Ids constant_pad(M& m) {
  const Shape pads = m.ints(1);
  if (std::ranges::any_of(pads, [](int64_t p) { return p < 0; }) || m.real(2, 0.0) != 0) M::unmapped("this padding");
  const TensorId x = m.tensor(0);
  const size_t rank = m.b.shape(x).size();
  Shape low(rank, 0);
  Shape high(rank, 0);
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    low[rank - 1 - i] = pads[2 * i];
    high[rank - 1 - i] = pads[2 * i + 1];
  }
  return {m.b.add("pad", {x}, {{"low", low}, {"high", high}})};
}

// Whole zeros with a window of the gradient in them.
TensorId in_zeros(M& m, TensorId gradient, const Shape& sizes, const Shape& starts, const Shape& steps) {
  const TensorId zeros = m.b.full(0, m.b.dtype(gradient), sizes);
  return m.b.add("update_slice", {zeros, gradient}, {{"starts", starts}, {"steps", steps}});
}
Ids slice_backward(M& m) {  // (gradient, sizes, dim, start, end, step)
  const Shape sizes = m.ints(1);
  const auto dim = static_cast<size_t>(M::dim(m.integer(2), sizes.size()));
  Shape starts(sizes.size(), 0);
  Shape steps(sizes.size(), 1);
  const int64_t start = m.integer(3);
  starts[dim] = std::clamp<int64_t>(start < 0 ? start + sizes[dim] : start, 0, sizes[dim]);
  steps[dim] = m.integer(5);
  return {in_zeros(m, m.tensor(0), sizes, starts, steps)};
}
Ids select_backward(M& m) {  // (gradient, sizes, dim, index)
  const Shape sizes = m.ints(1);
  const auto dim = static_cast<size_t>(M::dim(m.integer(2), sizes.size()));
  Shape starts(sizes.size(), 0);
  starts[dim] = m.integer(3) < 0 ? m.integer(3) + sizes[dim] : m.integer(3);
  Shape one = sizes;
  one[dim] = 1;
  return {in_zeros(m, m.b.reshape(m.tensor(0), one), sizes, starts, Shape(sizes.size(), 1))};
}

// Keeps x where column - row is at most (tril) or at least (triu) `diagonal`.
Ids triangle(M& m, bool lower) {
  const TensorId x = m.tensor(0);
  const Shape& shape = m.b.shape(x);
  const Shape square(shape.end() - 2, shape.end());
  const auto positions = [&](int64_t dim, int64_t start) {
    return m.b.add("iota", {}, {{"shape", square}, {"dtype", DType::kI64}, {"dim", dim}, {"start", start}});
  };
  const TensorId row = positions(0, m.integer(1, 0));
  const TensorId column = positions(1, 0);
  const TensorId keep = lower ? m.b.add("le", {column, row}) : m.b.add("le", {row, column});
  return {m.b.add("where", {keep, x, m.b.full(0, m.b.dtype(x))})};
}
Ids tril(M& m) { return triangle(m, true); }
Ids triu(M& m) { return triangle(m, false); }

// ---- indices

// Negative indices count from the end.
TensorId from_front(M& m, TensorId index, int64_t size) {
  const DType dtype = m.b.dtype(index);
  if (dtype == DType::kBool || dtype == DType::kU8) M::unmapped("a mask as index");
  const TensorId behind = m.b.add("add", {index, m.b.full(static_cast<double>(size), dtype)});
  return m.b.add("where", {m.b.add("lt", {index, m.b.full(0, dtype)}), behind, index});
}
Ids embedding(M& m) { return {m.b.add("take", {m.tensor(0), m.tensor(1)}, {{"dim", int64_t{0}}})}; }
Ids embedding_dense_backward(M& m) {  // (gradient, indices, rows, padding index, scale by frequency)
  if (m.flag(4)) M::unmapped("gradients scaled by frequency");
  const TensorId index = m.tensor(1);
  TensorId gradient = m.tensor(0);
  if (m.integer(3) >= 0) {
    Shape column = m.b.shape(index);
    column.push_back(1);
    const TensorId padding = m.b.full(static_cast<double>(m.integer(3)), m.b.dtype(index));
    const TensorId counts = m.b.reshape(m.b.add("ne", {index, padding}), column);
    gradient = m.b.add("where", {counts, gradient, m.b.full(0, m.b.dtype(gradient))});
  }
  const TensorId zeros = m.b.full(0, m.b.dtype(gradient), m.result(0).shape);
  return {m.b.add("put_add", {zeros, index, gradient}, {{"dim", int64_t{0}}})};
}
Ids index_select(M& m) {
  const TensorId x = m.tensor(0);
  return {m.b.add("take", {x, m.tensor(2)}, {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}
Ids gather(M& m) {
  const TensorId x = m.tensor(0);
  return {m.b.add("gather", {x, m.tensor(2)}, {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}
template <bool kAdd>
Ids scatter(M& m) {  // (x, dim, index, source)
  const TensorId x = m.tensor(0);
  const TensorId index = m.tensor(2);
  TensorId source = m.tensor(3, m.b.dtype(x));
  if (m.b.shape(source).empty()) source = m.b.expand(source, m.b.shape(index));
  if (m.b.shape(source) != m.b.shape(index))
    source = m.b.slice(source, Shape(m.b.shape(index).size(), 0), m.b.shape(index), Shape(m.b.shape(index).size(), 1));
  return {m.b.add(kAdd ? "scatter_add" : "scatter", {x, index, source},
                  {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}

// The only index among leading ones left out, and its dimension.
std::pair<TensorId, int64_t> single_index(M& m, size_t argument, TensorId x) {
  const auto* list = std::get_if<std::vector<ValueId>>(&m.args()[argument]);
  if (list == nullptr) M::unmapped("indices");
  std::optional<size_t> dim;
  for (size_t d = 0; d < list->size(); ++d) {
    if (!(*list)[d].valid()) continue;
    if (dim) M::unmapped("several index tensors");
    dim = d;
  }
  if (!dim) M::unmapped("no index tensor");
  const TensorId index = m.environment().read((*list)[*dim]);
  return {from_front(m, index, m.b.shape(x)[*dim]), static_cast<int64_t>(*dim)};
}
Ids index(M& m) {
  const TensorId x = m.tensor(0);
  const auto [index, dim] = single_index(m, 1, x);
  return {m.b.add("take", {x, index}, {{"dim", dim}})};
}
Ids index_put(M& m) {  // (x, indices, values, accumulate)
  const TensorId x = m.tensor(0);
  const auto [index, dim] = single_index(m, 1, x);
  Shape shape = m.b.shape(x);
  shape.erase(shape.begin() + dim);
  const Shape places = m.b.shape(index);
  shape.insert(shape.begin() + dim, places.begin(), places.end());
  const TensorId values = m.b.expand(m.tensor(2, m.b.dtype(x)), shape);
  return {m.b.add(m.flag(3, false) ? "put_add" : "put", {x, index, values}, {{"dim", dim}})};
}
Ids sort(M& m) {  // (x, dim, descending)
  const TensorId x = m.tensor(0);
  return m.b.add_all("sort", {x},
                     {{"dim", M::dim(m.integer(1, -1), m.b.shape(x).size())}, {"descending", m.flag(2, false)}});
}
Ids sort_stable(M& m) {  // (x, stable, dim, descending)
  const TensorId x = m.tensor(0);
  return m.b.add_all("sort", {x},
                     {{"dim", M::dim(m.integer(2, -1), m.b.shape(x).size())}, {"descending", m.flag(3, false)}});
}
Ids topk(M& m) {  // (x, k, dim, largest, sorted)
  const TensorId x = m.tensor(0);
  const Shape shape = m.b.shape(x);
  const Ids sorted =
      m.b.add_all("sort", {x}, {{"dim", M::dim(m.integer(2, -1), shape.size())}, {"descending", m.flag(3, true)}});
  const Shape zeros(shape.size(), 0);
  const Shape ones(shape.size(), 1);
  return {m.b.slice(sorted[0], zeros, m.result(0).shape, ones), m.b.slice(sorted[1], zeros, m.result(0).shape, ones)};
}

}  // namespace

std::vector<AtenRow> aten_shape_rows() {
  return {
      {"cat", cat},
      {"stack", stack},
      {"reshape", reshaped},
      {"_unsafe_view", reshaped},
      {"view_copy", reshaped},
      {"repeat", repeat},
      {"flip", flip},
      {"constant_pad_nd", constant_pad},
      {"slice_backward", slice_backward},
      {"select_backward", select_backward},
      {"tril", tril},
      {"triu", triu},
      {"embedding", embedding},
      {"embedding_dense_backward", embedding_dense_backward},
      {"index_select", index_select},
      {"gather", gather},
      {"scatter.src", scatter<false>},
      {"scatter.value", scatter<false>},
      {"scatter_add", scatter<true>},
      {"index.Tensor", index},
      {"index_put", index_put},
      {"_index_put_impl", index_put},
      {"sort", sort},
      {"sort.stable", sort_stable},
      {"topk", topk},
  };
}

}  // namespace stepc
