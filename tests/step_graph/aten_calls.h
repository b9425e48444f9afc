// Opaque ATen nodes for the interpreters: LibTorch runs them, on the interpreter's numbers.
#pragma once

#include <map>
#include <variant>
#include <vector>

#include <ATen/ATen.h>

#include "aten/constants.h"
#include "aten/operators.h"
#include "base/check.h"
#include "interp/array.h"

namespace stepc::test {

inline at::Tensor tensor_of(const Array& array) {
  const at::TensorOptions options = array.is_real() ? at::kDouble : at::kLong;
  at::Tensor out = at::empty(array.type.shape, options);
  for (int64_t i = 0; i < array.count(); ++i) {
    if (array.is_real())
      out.mutable_data_ptr<double>()[i] = array.real(i);
    else
      out.mutable_data_ptr<int64_t>()[i] = array.integer(i);
  }
  return out.to(scalar_type_of(array.type.dtype));
}

inline Array array_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  const auto* bytes = static_cast<const uint8_t*>(dense.const_data_ptr());
  return from_bytes({dtype_of(dense.scalar_type()), dense.sizes().vec()}, {bytes, bytes + dense.nbytes()});
}

// What the call gives on these operands, undefined where it gives none. Lists of tensors are not taken.
inline std::vector<at::Tensor> call_aten(const std::string& op, const std::vector<Arg>& args,
                                         const std::vector<at::Tensor>& operands) {
  const at::NoGradGuard no_grad;
  const c10::OperatorHandle handle = find_operator(op);
  const auto& schema = handle.schema().arguments();
  INTERNAL_CHECK_EQ(args.size(), schema.size(), "arguments of {}", op);
  torch::jit::Stack stack;
  for (size_t a = 0; a < args.size(); ++a) {
    const auto* value = std::get_if<ValueId>(&args[a]);
    if (value == nullptr)
      stack.push_back(constant_to_ivalue(args[a], schema[a]));
    else
      stack.emplace_back(value->valid() ? operands[value->index()] : at::Tensor());
  }
  handle.callBoxed(&stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) results.push_back(value.toTensor());
  return results;
}

// As an AtenCallFn.
inline std::vector<Array> run_aten_node(const Node& node, const std::vector<Array>& operands) {
  std::vector<at::Tensor> given;
  for (const Array& operand : operands) given.push_back(tensor_of(operand));
  const std::vector<at::Tensor> made = call_aten(node.op, node.aten->args, given);
  std::vector<Array> out;
  for (size_t r = 0; r < node.aten->results.size(); ++r) {
    const auto* value = std::get_if<ValueId>(&node.aten->results[r]);
    if (value != nullptr && value->valid()) out.push_back(array_of(made.at(r)));
  }
  for (uint32_t written : node.aten->writes) out.push_back(array_of(given[written]));
  return out;
}

}  // namespace stepc::test
