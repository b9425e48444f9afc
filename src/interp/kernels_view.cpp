#include "interp/kernels.h"

namespace stepc {

namespace {

using Arrays = std::vector<Array>;
using Types = std::vector<TensorType>;

Arrays reshape(const Arrays& in, const Attrs&, const Types& types) {
  Array out = in[0];
  out.type = types[0];
  return {out};
}

Arrays transpose(const Arrays& in, const Attrs& attrs, const Types& types) {
  const Shape& permutation = attrs.get<Shape>("permutation");
  const Shape own = contiguous_strides(in[0].type.shape);
  Shape strides;
  for (int64_t d : permutation) strides.push_back(own[static_cast<size_t>(d)]);
  return {rearranged(in[0], types[0].shape, [&](const Shape& index) { return dot(index, strides); })};
}

Arrays expand(const Arrays& in, const Attrs&, const Types& types) {
  const Shape& shape = in[0].type.shape;
  const Shape own = contiguous_strides(shape);
  const size_t missing = types[0].shape.size() - shape.size();
  return {rearranged(in[0], types[0].shape, [&](const Shape& index) {
    int64_t position = 0;
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != 1) position += index[d + missing] * own[d];
    return position;
  })};
}

int64_t window_position(const Shape& index, const Attrs& attrs, const Shape& shape) {
  const Shape& starts = attrs.get<Shape>("starts");
  const Shape& steps = attrs.get<Shape>("steps");
  const Shape own = contiguous_strides(shape);
  int64_t position = 0;
  for (size_t d = 0; d < index.size(); ++d) position += (starts[d] + index[d] * steps[d]) * own[d];
  return position;
}
Arrays slice(const Arrays& in, const Attrs& attrs, const Types& types) {
  return {rearranged(in[0], types[0].shape,
                     [&](const Shape& index) { return window_position(index, attrs, in[0].type.shape); })};
}
Arrays update_slice(const Arrays& in, const Attrs& attrs, const Types&) {
  Array out = in[0];
  for_each_index(in[1].type.shape, [&](const Shape& index, int64_t i) {
    copy_element(out, window_position(index, attrs, out.type.shape), in[1], i);
  });
  return {out};
}

Arrays pad(const Arrays& in, const Attrs& attrs, const Types& types) {
  const Shape& low = attrs.get<Shape>("low");
  const Shape& shape = in[0].type.shape;
  const Shape own = contiguous_strides(shape);
  return {rearranged(in[0], types[0].shape, [&](const Shape& index) {
    int64_t position = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      const int64_t inner = index[d] - low[d];
      if (inner < 0 || inner >= shape[d]) return int64_t{-1};
      position += inner * own[d];
    }
    return position;
  })};
}

Arrays concat(const Arrays& in, const Attrs& attrs, const Types& types) {
  const auto dim = static_cast<size_t>(attrs.get<int64_t>("dim"));
  const Shape own = contiguous_strides(types[0].shape);
  Array out(types[0]);
  int64_t start = 0;
  for (const Array& part : in) {
    for_each_index(part.type.shape, [&](const Shape& index, int64_t i) {
      copy_element(out, dot(index, own) + start * own[dim], part, i);
    });
    start += part.type.shape[dim];
  }
  return {out};
}

Arrays reverse(const Arrays& in, const Attrs& attrs, const Types& types) {
  const Shape own = contiguous_strides(types[0].shape);
  return {rearranged(in[0], types[0].shape, [&](const Shape& index) {
    Shape from = index;
    for (int64_t dim : attrs.get<Shape>("dims")) {
      const auto d = static_cast<size_t>(dim);
      from[d] = types[0].shape[d] - 1 - from[d];
    }
    return dot(from, own);
  })};
}

Arrays as_strided(const Arrays& in, const Attrs& attrs, const Types& types) {
  const Shape& strides = attrs.get<Shape>("strides");
  const int64_t offset = attrs.get<int64_t>("offset");
  return {rearranged(in[0], types[0].shape, [&](const Shape& index) { return offset + dot(index, strides); })};
}
Arrays as_strided_scatter(const Arrays& in, const Attrs& attrs, const Types&) {
  const Shape& strides = attrs.get<Shape>("strides");
  const int64_t offset = attrs.get<int64_t>("offset");
  Array out = in[0];
  for_each_index(in[1].type.shape,
                 [&](const Shape& index, int64_t i) { copy_element(out, offset + dot(index, strides), in[1], i); });
  return {out};
}

Arrays bitcast(const Arrays& in, const Attrs&, const Types& types) { return {from_bytes(types[0], to_bytes(in[0]))}; }

}  // namespace

const KernelTable& view_kernels() {
  static const KernelTable kTable = {{"reshape", reshape},
                                     {"transpose", transpose},
                                     {"expand", expand},
                                     {"slice", slice},
                                     {"update_slice", update_slice},
                                     {"pad", pad},
                                     {"concat", concat},
                                     {"reverse", reverse},
                                     {"as_strided", as_strided},
                                     {"as_strided_scatter", as_strided_scatter},
                                     {"bitcast", bitcast}};
  return kTable;
}

}  // namespace stepc
