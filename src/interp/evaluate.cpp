#include "interp/evaluate.h"

#include "base/check.h"
#include "interp/interpret.h"
#include "interp/kernels.h"
#include "ops/graph_builder.h"

namespace stepc {

namespace {

// Strides of an operand as seen from the result: 0 where it is repeated.
Shape broadcast_strides(const Shape& operand, const Shape& result) {
  Shape strides(result.size(), 0);
  const Shape own = contiguous_strides(operand);
  const size_t missing = result.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d)
    if (operand[d] != 1) strides[d + missing] = own[d];
  return strides;
}

template <class T>
T element(const Array& array, int64_t i) {
  if constexpr (std::is_same_v<T, double>)
    return array.real(i);
  else
    return array.integer(i);
}

template <class T>
Array evaluate_body(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs, const TensorType& type) {
  const ScalarExpr body = scalar_expr(op.body);
  std::vector<Shape> strides;
  for (const Array& input : inputs) strides.push_back(broadcast_strides(input.type.shape, type.shape));
  Array out(type);
  std::vector<T> arguments(inputs.size());
  for_each_index(type.shape, [&](const Shape& index, int64_t i) {
    for (size_t k = 0; k < inputs.size(); ++k) arguments[k] = element<T>(inputs[k], dot(index, strides[k]));
    const T value = evaluate(body, arguments, attrs);
    // Truth is being unlike 0, also for 0.5 and for NaN.
    if (type.dtype == DType::kBool)
      out.set(i, int64_t{value != 0 ? 1 : 0});
    else
      out.set(i, value);
  });
  return out;
}

Array evaluate_elementwise(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs,
                           const TensorType& type) {
  bool real = false;
  for (const Array& input : inputs) real = real || input.is_real();
  return real ? evaluate_body<double>(op, inputs, attrs, type) : evaluate_body<int64_t>(op, inputs, attrs, type);
}

std::vector<Array> evaluate_decomposition(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs) {
  GraphBuilder builder;
  std::vector<TensorId> ids;
  for (size_t i = 0; i < inputs.size(); ++i)
    ids.push_back(builder.graph().add_input({InputKind::kCaptured, str("{}", i), {}, {}, 0}, inputs[i].type));
  for (TensorId id : op.decompose(builder, ids, attrs)) {
    builder.graph().outputs.emplace_back();
    builder.graph().outputs.back().tensor = id;
  }
  return interpret(builder.take(), inputs);
}

}  // namespace

std::vector<Array> evaluate(const OpDef& op, const std::vector<Array>& inputs, const Attrs& attrs) {
  OpCall call;
  for (const Array& input : inputs) call.inputs.push_back(input.type);
  call.attrs = attrs;
  const std::vector<TensorType> types = infer_types(op, call);
  if (op.collective == Collective::kReshard) return inputs;
  if (op.collective == Collective::kWait)
    return {inputs.begin(), inputs.begin() + static_cast<ptrdiff_t>(types.size())};
  if (op.body != nullptr) return {evaluate_elementwise(op, inputs, attrs, types[0])};
  if (op.decompose != nullptr) return evaluate_decomposition(op, inputs, attrs);
  for (const KernelTable* table :
       {&view_kernels(), &reduce_kernels(), &matmul_kernels(), &index_kernels(), &random_kernels()})
    if (const auto found = table->find(op.name); found != table->end()) return found->second(inputs, attrs, types);
  INTERNAL_CHECK(false, "{} is not interpreted", op.name);
  return {};
}

}  // namespace stepc
