#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "interp/kernels.h"

namespace stepc {

namespace {

using Arrays = std::vector<Array>;
using Types = std::vector<TensorType>;

int64_t checked_index(const Array& index, int64_t i, int64_t size) {
  const int64_t value = index.integer(i);
  USER_CHECK(0 <= value && value < size, "an index is {}; it selects among {}", value, size);
  return value;
}

void add_element(Array& out, int64_t to, const Array& value, int64_t from) {
  if (out.is_real())
    out.set(to, out.real(to) + value.real(from));
  else
    out.set(to,
            static_cast<int64_t>(static_cast<uint64_t>(out.integer(to)) + static_cast<uint64_t>(value.integer(from))));
}

// Calls f(place in x, place in the index) for gather and its relatives.
template <class F>
void for_each_gathered(const Array& x, const Array& index, size_t dim, F&& f) {
  const Shape own = contiguous_strides(x.type.shape);
  for_each_index(index.type.shape, [&](const Shape& at, int64_t i) {
    Shape from = at;
    from[dim] = checked_index(index, i, x.type.shape[dim]);
    f(dot(from, own), i);
  });
}

// Calls f(place in x, place in the taken slices) for take and its relatives.
template <class F>
void for_each_taken(const Array& x, const Array& index, size_t dim, F&& f) {
  const Shape& shape = x.type.shape;
  const auto product = [&](size_t begin, size_t end) {
    return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(begin), shape.begin() + static_cast<ptrdiff_t>(end),
                           int64_t{1}, std::multiplies<>());
  };
  const int64_t outer = product(0, dim);
  const int64_t inner = product(dim + 1, shape.size());
  int64_t to = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t k = 0; k < index.count(); ++k) {
      const int64_t chosen = checked_index(index, k, shape[dim]);
      for (int64_t i = 0; i < inner; ++i) f((o * shape[dim] + chosen) * inner + i, to++);
    }
}

size_t dim_of(const Attrs& attrs) { return static_cast<size_t>(attrs.get<int64_t>("dim")); }

Arrays gather(const Arrays& in, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for_each_gathered(in[0], in[1], dim_of(attrs), [&](int64_t x, int64_t i) { copy_element(out, i, in[0], x); });
  return {out};
}
Arrays scatter(const Arrays& in, const Attrs& attrs, const Types&) {
  Array out = in[0];
  for_each_gathered(in[0], in[1], dim_of(attrs), [&](int64_t x, int64_t i) { copy_element(out, x, in[2], i); });
  return {out};
}
Arrays scatter_add(const Arrays& in, const Attrs& attrs, const Types&) {
  Array out = in[0];
  for_each_gathered(in[0], in[1], dim_of(attrs), [&](int64_t x, int64_t i) { add_element(out, x, in[2], i); });
  return {out};
}
Arrays take(const Arrays& in, const Attrs& attrs, const Types& types) {
  Array out(types[0]);
  for_each_taken(in[0], in[1], dim_of(attrs), [&](int64_t x, int64_t i) { copy_element(out, i, in[0], x); });
  return {out};
}
Arrays put(const Arrays& in, const Attrs& attrs, const Types&) {
  Array out = in[0];
  for_each_taken(in[0], in[1], dim_of(attrs), [&](int64_t x, int64_t i) { copy_element(out, x, in[2], i); });
  return {out};
}
Arrays put_add(const Arrays& in, const Attrs& attrs, const Types&) {
  Array out = in[0];
  for_each_taken(in[0], in[1], dim_of(attrs), [&](int64_t x, int64_t i) { add_element(out, x, in[2], i); });
  return {out};
}

Arrays sort(const Arrays& in, const Attrs& attrs, const Types& types) {
  const size_t dim = dim_of(attrs);
  const bool descending = attrs.get<bool>("descending");
  const int64_t stride = contiguous_strides(in[0].type.shape)[dim];
  const int64_t size = in[0].type.shape[dim];
  Array values(types[0]);
  Array places(types[1]);
  const auto less = [&](int64_t a, int64_t b) {
    if (!in[0].is_real()) return in[0].integer(a) < in[0].integer(b);
    const double x = in[0].real(a);
    const double y = in[0].real(b);
    return x < y || (std::isnan(y) && !std::isnan(x));
  };
  for_each_index(in[0].type.shape, [&](const Shape& index, int64_t first) {
    if (index[dim] != 0) return;
    std::vector<int64_t> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
      return descending ? less(first + b * stride, first + a * stride) : less(first + a * stride, first + b * stride);
    });
    for (int64_t i = 0; i < size; ++i) {
      copy_element(values, first + i * stride, in[0], first + order[static_cast<size_t>(i)] * stride);
      places.set(first + i * stride, order[static_cast<size_t>(i)]);
    }
  });
  return {values, places};
}

}  // namespace

const KernelTable& index_kernels() {
  static const KernelTable kTable = {{"gather", gather}, {"scatter", scatter}, {"scatter_add", scatter_add},
                                     {"take", take},     {"put", put},         {"put_add", put_add},
                                     {"sort", sort}};
  return kTable;
}

}  // namespace stepc
