// ATen map: calls that move elements to new memory. (Views need no row: they are windows on a storage.)
#include <algorithm>
#include <numeric>
#include <optional>

#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"
#include "ops/rules/shape_rules.h"

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
Ids roll(M& m) {  // (x, shifts, dims); without dims, of all elements in a row
  TensorId x = m.tensor(0);
  const Shape sizes = m.b.shape(x);
  Shape dims = m.ints(2, Shape());
  if (dims.empty()) {
    x = m.b.reshape(x, {element_count(sizes)});
    dims = {0};
  }
  const Shape shifts = m.ints(1);
  for (size_t i = 0; i < dims.size(); ++i) {
    const Shape shape = m.b.shape(x);
    const auto dim = static_cast<size_t>(M::dim(dims[i], shape.size()));
    if (shape[dim] == 0) continue;
    const int64_t first = ((-shifts[i]) % shape[dim] + shape[dim]) % shape[dim];  // where the result begins
    if (first == 0) continue;
    const Shape steps(shape.size(), 1);
    Shape start(shape.size(), 0);
    Shape head = shape;
    Shape tail = shape;
    head[dim] = first;
    tail[dim] -= first;
    const TensorId front = m.b.slice(x, start, head, steps);
    start[dim] = first;
    x = m.b.add("concat", {m.b.slice(x, start, tail, steps), front}, {{"dim", static_cast<int64_t>(dim)}});
  }
  return {m.b.reshape(x, sizes)};
}
Ids constant_pad(M& m) {  // (x, pads, value); a negative pad cuts off
  TensorId x = m.tensor(0);
  const Shape pads = m.ints(1);
  Shape sizes = m.b.shape(x);
  const size_t rank = sizes.size();
  Shape low(rank, 0);
  Shape high(rank, 0);
  Shape from(rank, 0);
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const size_t d = rank - 1 - i;
    low[d] = std::max<int64_t>(pads[2 * i], 0);
    high[d] = std::max<int64_t>(pads[2 * i + 1], 0);
    from[d] = std::max<int64_t>(-pads[2 * i], 0);
    sizes[d] -= from[d] + std::max<int64_t>(-pads[2 * i + 1], 0);
  }
  const Shape steps(rank, 1);
  if (sizes != m.b.shape(x)) x = m.b.slice(x, from, sizes, steps);
  const double value = m.real(2, 0.0);
  if (value == 0) return {m.b.add("pad", {x}, {{"low", low}, {"high", high}})};
  const TensorId whole = m.b.full(value, m.b.dtype(x), m.result(0).shape);
  return {m.b.add("update_slice", {whole, x}, {{"starts", low}, {"steps", steps}})};
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
  const TensorId index = m.b.reshape(m.tensor(2), {element_count(m.b.shape(m.tensor(2)))});  // a 0-dim one has one
  return {m.b.add("take", {x, index}, {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}
Ids gather(M& m) {
  const TensorId x = m.tensor(0);
  const TensorId index = m.tensor(2);
  if (m.b.shape(index).size() != m.b.shape(x).size()) M::unmapped("a 0-dim index");
  return {m.b.add("gather", {x, index}, {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}
template <bool kAdd>
Ids scatter(M& m) {  // (x, dim, index, source)
  const TensorId x = m.tensor(0);
  const TensorId index = m.tensor(2);
  if (m.b.shape(index).size() != m.b.shape(x).size()) M::unmapped("a 0-dim index");
  TensorId source = m.tensor(3, m.b.dtype(x));
  if (m.b.shape(source).empty()) source = m.b.expand(source, m.b.shape(index));
  if (m.b.shape(source) != m.b.shape(index))
    source = m.b.slice(source, Shape(m.b.shape(index).size(), 0), m.b.shape(index), Shape(m.b.shape(index).size(), 1));
  return {m.b.add(kAdd ? "scatter_add" : "scatter", {x, index, source},
                  {{"dim", M::dim(m.integer(1), m.b.shape(x).size())}})};
}

// Index tensors of neighbouring dimensions, as one index into those dimensions laid out in a row.
struct IndexedDims {
  TensorId x;      // with one dimension in their stead
  TensorId index;  // of the index tensors' common shape
  int64_t dim;
};
IndexedDims indexed_dims(M& m, size_t argument) {
  const TensorId x = m.tensor(0);
  const Shape sizes = m.b.shape(x);
  const auto* list = std::get_if<std::vector<ValueId>>(&m.args()[argument]);
  if (list == nullptr) M::unmapped("indices");
  const auto is_given = [](ValueId id) { return id.valid(); };
  const auto first = std::ranges::find_if(*list, is_given);
  const auto last = std::find_if_not(first, list->end(), is_given);
  if (first == list->end()) M::unmapped("no index tensor");
  if (std::any_of(last, list->end(), is_given)) M::unmapped("index tensors apart from each other");
  const auto dim = static_cast<size_t>(first - list->begin());
  TensorId index;
  int64_t elements = 1;
  std::vector<TensorType> types;
  for (auto one = first; one != last; ++one) types.push_back(m.b.type(m.environment().read(*one)));
  const Shape common = broadcast_shape(types);
  for (auto one = first; one != last; ++one) {
    const int64_t size = sizes[static_cast<size_t>(one - list->begin())];
    TensorId next = from_front(m, m.environment().read(*one), size);
    if (last - first > 1) next = m.b.expand(m.b.cast(next, DType::kI64), common);
    if (one != first) {
      const TensorId row = m.b.add("mul", {index, m.b.full(static_cast<double>(size), DType::kI64)});
      next = m.b.add("add", {row, next});
    }
    index = next;
    elements *= size;
  }
  Shape merged = sizes;
  merged.erase(merged.begin() + static_cast<ptrdiff_t>(dim), merged.begin() + (last - list->begin()));
  merged.insert(merged.begin() + static_cast<ptrdiff_t>(dim), elements);
  return {m.b.reshape(x, merged), index, static_cast<int64_t>(dim)};
}
Ids index(M& m) {
  const IndexedDims at = indexed_dims(m, 1);
  return {m.b.add("take", {at.x, at.index}, {{"dim", at.dim}})};
}
// x[..., mask] = values, where all places get the same: one number, or a row of what lies behind the mask's dimensions.
// Nothing where the mask is none, or other places get other values, as many as it has of true ones.
std::optional<TensorId> fill_by_mask(M& m) {
  const auto* list = std::get_if<std::vector<ValueId>>(&m.args()[1]);
  if (list == nullptr || m.flag(3, false)) return std::nullopt;
  const auto is_given = [](ValueId id) { return id.valid(); };
  const auto only = std::ranges::find_if(*list, is_given);
  if (only == list->end() || std::ranges::count_if(*list, is_given) != 1) return std::nullopt;
  TensorId mask = m.environment().read(*only);
  if (m.b.dtype(mask) != DType::kBool) return std::nullopt;
  const TensorId x = m.tensor(0);
  TensorId values = m.tensor(2, m.b.dtype(x));
  Shape of_values = m.b.shape(values), of_mask = m.b.shape(mask);
  const size_t behind = m.b.shape(x).size() - static_cast<size_t>(only - list->begin()) - of_mask.size();
  while (of_values.size() > behind && of_values.front() == 1) of_values.erase(of_values.begin());
  if (of_values.size() > behind) return std::nullopt;
  of_mask.insert(of_mask.end(), behind, 1);
  mask = m.b.reshape(mask, of_mask);
  values = m.b.reshape(values, of_values);
  return m.as_result(m.b.add("where", {mask, values, x}));
}
Ids index_put(M& m) {  // (x, indices, values, accumulate)
  if (const auto filled = fill_by_mask(m)) return {*filled};
  const IndexedDims at = indexed_dims(m, 1);
  Shape shape = m.b.shape(at.x);
  shape.erase(shape.begin() + at.dim);
  const Shape places = m.b.shape(at.index);
  shape.insert(shape.begin() + at.dim, places.begin(), places.end());
  const TensorId values = m.b.expand(m.tensor(2, m.b.dtype(at.x)), shape);
  const TensorId put = m.b.add(m.flag(3, false) ? "put_add" : "put", {at.x, at.index, values}, {{"dim", at.dim}});
  return {m.b.reshape(put, m.b.shape(m.tensor(0)))};
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
      {"roll", roll},
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
