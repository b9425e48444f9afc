// ATen map: convolutions that cut an image into patches (stride equal to the kernel, no padding), as a vision
// transformer's first layer does. They are matmuls; every other convolution stays opaque.
#include <algorithm>

#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Ids = std::vector<TensorId>;
using M = AtenMapper;

struct Patches {
  int64_t batch, channels, rows, columns, height, width, features;  // rows x columns patches of height x width
  [[nodiscard]] int64_t count() const { return batch * rows * columns; }
  [[nodiscard]] int64_t size() const { return channels * height * width; }
};

// `first`: the argument with the strides; padding, dilation, transposed, output padding and groups follow it.
Patches patches_of(M& m, TensorId x, TensorId weight, size_t first) {
  const Shape& image = m.b.shape(x);
  const Shape& kernel = m.b.shape(weight);
  if (image.size() != 4 || kernel.size() != 4) M::unmapped("a convolution of other than 2 dimensions");
  const auto all = [&](size_t argument, int64_t value) {
    return std::ranges::all_of(m.ints(argument), [&](int64_t v) { return v == value; });
  };
  const Shape strides = m.ints(first);
  const bool is_patches = strides == Shape{kernel[2], kernel[3]} && all(first + 1, 0) && all(first + 2, 1) &&
                          !m.flag(first + 3) && m.integer(first + 5) == 1 && image[2] % kernel[2] == 0 &&
                          image[3] % kernel[3] == 0;
  if (!is_patches) M::unmapped("a convolution with overlap, padding or groups");
  return {image[0], image[1], image[2] / kernel[2], image[3] / kernel[3], kernel[2], kernel[3], kernel[0]};
}

// (batch, channels, rows, height, columns, width) to a row a patch.
TensorId as_rows(GraphBuilder& b, TensorId x, const Patches& p) {
  const TensorId cut = b.reshape(x, {p.batch, p.channels, p.rows, p.height, p.columns, p.width});
  return b.reshape(b.transpose(cut, {0, 2, 4, 1, 3, 5}), {p.count(), p.size()});
}

Ids convolution(M& m) {  // (x, weight, bias, stride, padding, dilation, transposed, output padding, groups)
  const TensorId x = m.tensor(0);
  const TensorId weight = m.tensor(1);
  const Patches p = patches_of(m, x, weight, 3);
  TensorId out =
      m.b.add("matmul", {as_rows(m.b, x, p), m.b.reshape(weight, {p.features, p.size()})}, {{"transpose_b", true}});
  if (m.has(2)) out = m.b.add("add", {out, m.tensor(2)});
  return {m.b.transpose(m.b.reshape(out, {p.batch, p.rows, p.columns, p.features}), {0, 3, 1, 2})};
}

// (gradient, x, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, mask)
Ids convolution_backward(M& m) {
  const TensorId x = m.tensor(1);
  const TensorId weight = m.tensor(2);
  const Patches p = patches_of(m, x, weight, 4);
  const auto* mask = std::get_if<std::vector<bool>>(&m.args().at(10));
  if (mask == nullptr) M::unmapped("no mask of gradients");
  const TensorId gradient = m.b.reshape(m.b.transpose(m.tensor(0), {0, 2, 3, 1}), {p.count(), p.features});
  Ids out;
  if ((*mask)[0]) {
    const TensorId rows = m.b.add("matmul", {gradient, m.b.reshape(weight, {p.features, p.size()})});
    const TensorId cut = m.b.reshape(rows, {p.batch, p.rows, p.columns, p.channels, p.height, p.width});
    out.push_back(m.b.reshape(m.b.transpose(cut, {0, 3, 1, 4, 2, 5}), m.b.shape(x)));
  }
  if ((*mask)[1]) {
    const TensorId sum = m.b.add("matmul", {gradient, as_rows(m.b, x, p)}, {{"transpose_a", true}});
    out.push_back(m.b.reshape(sum, m.b.shape(weight)));
  }
  if ((*mask)[2]) out.push_back(m.b.sum(gradient, {0}));
  return out;
}

}  // namespace

std::vector<AtenRow> aten_convolution_rows() {
  return {{"convolution", convolution}, {"convolution_backward", convolution_backward}};
}

}  // namespace stepc
