#include "ops/graph_builder.h"

#include <numeric>

#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

std::vector<TensorId> GraphBuilder::add_all(std::string_view op, std::vector<TensorId> inputs, Attrs attrs) {
  const OpDef& def = op_def(op);
  Node node;
  node.op = std::string(op);
  node.inputs = std::move(inputs);
  node.attrs = complete_attrs(def, std::move(attrs));
  node.source = source_;
  const std::vector<TensorType> types = infer_types(def, call_of(graph_, node));
  return graph_.nodes[graph_.add_node(std::move(node), types).index()].outputs;
}

TensorId GraphBuilder::add(std::string_view op, std::vector<TensorId> inputs, Attrs attrs) {
  const std::vector<TensorId> outputs = add_all(op, std::move(inputs), std::move(attrs));
  INTERNAL_CHECK_EQ(outputs.size(), 1U, "{}", op);
  return outputs[0];
}

std::vector<TensorId> GraphBuilder::add_aten(Node node, const std::vector<TensorType>& types) {
  node.source = source_;
  return graph_.nodes[graph_.add_node(std::move(node), types).index()].outputs;
}

TensorId GraphBuilder::full(double value, DType dtype, Shape shape) {
  const AttrValue number = is_floating(dtype) ? AttrValue(value) : AttrValue(static_cast<int64_t>(value));
  return add("full", {}, {{"value", number}, {"dtype", dtype}, {"shape", std::move(shape)}});
}

TensorId GraphBuilder::cast(TensorId x, DType dtype) {
  return this->dtype(x) == dtype ? x : add("cast", {x}, {{"dtype", dtype}});
}
TensorId GraphBuilder::reshape(TensorId x, const Shape& shape) {
  return this->shape(x) == shape ? x : add("reshape", {x}, {{"shape", shape}});
}
TensorId GraphBuilder::transpose(TensorId x, const Shape& permutation) {
  Shape same(permutation.size());
  std::iota(same.begin(), same.end(), 0);
  return permutation == same ? x : add("transpose", {x}, {{"permutation", permutation}});
}
TensorId GraphBuilder::expand(TensorId x, const Shape& shape) {
  return this->shape(x) == shape ? x : add("expand", {x}, {{"shape", shape}});
}
TensorId GraphBuilder::slice(TensorId x, const Shape& starts, const Shape& sizes, const Shape& steps) {
  if (shape(x) == sizes) return x;
  return add("slice", {x}, {{"starts", starts}, {"shape", sizes}, {"steps", steps}});
}
TensorId GraphBuilder::sum(TensorId x, const Shape& dims, bool keepdim) {
  return add("sum", {x}, {{"dims", dims}, {"keepdim", keepdim}});
}

}  // namespace stepc
