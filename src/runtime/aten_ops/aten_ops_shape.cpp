// Views and reductions on ATen.
#include <ATen/Functions.h>

#include "aten/constants.h"
#include "runtime/aten_ops/aten_ops.h"

namespace stepc::detail {

namespace {
using Tensors = std::vector<at::Tensor>;
using Types = std::vector<TensorType>;
using at::Tensor;

Tensors reshape(const Tensors& x, const Attrs& attrs, const Types&) {
  return {x[0].reshape(attrs.get<Shape>("shape"))};
}
Tensors transpose(const Tensors& x, const Attrs& attrs, const Types&) {
  return {x[0].permute(attrs.get<Shape>("permutation"))};
}
Tensors expand(const Tensors& x, const Attrs& attrs, const Types&) { return {x[0].expand(attrs.get<Shape>("shape"))}; }

// A view of the window given by starts, sizes and steps.
Tensor window(Tensor x, const Shape& starts, c10::IntArrayRef sizes, const Shape& steps) {
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t end = sizes[d] == 0 ? starts[d] : starts[d] + (sizes[d] - 1) * steps[d] + 1;
    x = x.slice(static_cast<int64_t>(d), starts[d], end, steps[d]);
  }
  return x;
}
Tensors slice(const Tensors& x, const Attrs& attrs, const Types&) {
  return {window(x[0], attrs.get<Shape>("starts"), attrs.get<Shape>("shape"), attrs.get<Shape>("steps"))};
}
void update_slice(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  window(target, attrs.get<Shape>("starts"), x[1].sizes(), attrs.get<Shape>("steps")).copy_(x[1]);
}
Tensors pad(const Tensors& x, const Attrs& attrs, const Types&) {
  const Shape& low = attrs.get<Shape>("low");
  const Shape& high = attrs.get<Shape>("high");
  Shape sizes;  // ATen names the last dimension first
  for (size_t d = low.size(); d-- > 0;) {
    sizes.push_back(low[d]);
    sizes.push_back(high[d]);
  }
  return {at::constant_pad_nd(x[0], sizes, 0)};
}
Tensors concat(const Tensors& x, const Attrs& attrs, const Types&) { return {at::cat(x, attrs.get<int64_t>("dim"))}; }
Tensors reverse(const Tensors& x, const Attrs& attrs, const Types&) { return {x[0].flip(attrs.get<Shape>("dims"))}; }
Tensors as_strided(const Tensors& x, const Attrs& attrs, const Types&) {
  const Tensor dense = x[0].contiguous();
  return {dense.as_strided(attrs.get<Shape>("shape"), attrs.get<Shape>("strides"),
                           dense.storage_offset() + attrs.get<int64_t>("offset"))};
}
void as_strided_scatter(const Tensor& target, const Tensors& x, const Attrs& attrs) {
  target.as_strided(x[1].sizes(), attrs.get<Shape>("strides"), target.storage_offset() + attrs.get<int64_t>("offset"))
      .copy_(x[1]);
}
Tensors bitcast(const Tensors& x, const Attrs& attrs, const Types&) {
  return {x[0].contiguous().view(scalar_type_of(attrs.get<DType>("dtype")))};
}

// ---- reductions

// ATen reduces over all dimensions if it is given none.
template <Tensor (*kFn)(const Tensor&, const Shape&, bool)>
Tensors reduce(const Tensors& x, const Attrs& attrs, const Types&) {
  const Shape& dims = attrs.get<Shape>("dims");
  if (dims.empty()) return {x[0].clone()};
  return {kFn(x[0], dims, attrs.get<bool>("keepdim"))};
}
Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) { return at::sum(x, dims, keepdim, x.scalar_type()); }
Tensor max(const Tensor& x, const Shape& dims, bool keepdim) { return at::amax(x, dims, keepdim); }
Tensor min(const Tensor& x, const Shape& dims, bool keepdim) { return at::amin(x, dims, keepdim); }
Tensor any(const Tensor& x, const Shape& dims, bool keepdim) { return at::any(x, dims, keepdim); }
Tensor all(const Tensor& x, const Shape& dims, bool keepdim) { return at::all(x, dims, keepdim); }
Tensor prod(const Tensor& x, const Shape& dims, bool keepdim) {
  Tensor out = x;
  for (int64_t dim : dims) out = at::prod(out, dim, /*keepdim=*/true, x.scalar_type());
  return keepdim ? out : out.squeeze(dims);
}

Tensors argmax(const Tensors& x, const Attrs& attrs, const Types&) {
  return {at::argmax(x[0], attrs.get<int64_t>("dim"), attrs.get<bool>("keepdim"))};
}
Tensors argmin(const Tensors& x, const Attrs& attrs, const Types&) {
  return {at::argmin(x[0], attrs.get<int64_t>("dim"), attrs.get<bool>("keepdim"))};
}
Tensors cumsum(const Tensors& x, const Attrs& attrs, const Types&) {
  return {at::cumsum(x[0], attrs.get<int64_t>("dim"), x[0].scalar_type())};
}
}  // namespace

const OverwritingOps& shape_overwriting_ops() {
  static const OverwritingOps kOps = {{"update_slice", update_slice}, {"as_strided_scatter", as_strided_scatter}};
  return kOps;
}

const AtenOps& view_aten_ops() {
  static const AtenOps kOps = {
      {"reshape", reshape}, {"transpose", transpose},   {"expand", expand},
      {"slice", slice},     {"as_strided", as_strided}, {"bitcast", bitcast},
  };
  return kOps;
}

const AtenOps& shape_aten_ops() {
  static const AtenOps kOps = {
      {"pad", pad},           {"concat", concat},   {"reverse", reverse}, {"sum", reduce<sum>},
      {"prod", reduce<prod>}, {"max", reduce<max>}, {"min", reduce<min>}, {"any", reduce<any>},
      {"all", reduce<all>},   {"argmax", argmax},   {"argmin", argmin},   {"cumsum", cumsum},
  };
  return kOps;
}

}  // namespace stepc::detail
