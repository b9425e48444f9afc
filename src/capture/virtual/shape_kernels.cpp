#include "capture/virtual/shape_kernels.h"

#include <string>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/OperatorEntry.h>

namespace stepc {

namespace {

using Table = std::unordered_map<c10::OperatorName, c10::KernelFunction>;

Table make_table() {
  Table table;
  for (ShapeKernels rows : {structured_shapes(), elementwise_shapes(), copy_shapes(), index_shapes(), norm_shapes(),
                            attention_shapes(), convolution_shapes(), pooling_shapes()})
    for (ShapeKernel& row : rows) table.emplace(std::move(row.op), std::move(row.kernel));
  return table;
}

// What the dispatcher itself has for the Meta backend.
void call_meta_backend(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
}

// The functional foreach operators: for each tensor of the first list one like it, or its norm or maximum.
void call_foreach(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const bool reduces = name == "aten::_foreach_norm" || name == "aten::_foreach_max";
  c10::List<at::Tensor> results;
  std::optional<c10::ScalarType> dtype;
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "dtype" && !values[i].isNone()) dtype = values[i].toScalarType();
  for (const c10::IValue& value : values) {
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorVector())
      results.push_back(reduces ? dense({}, dtype.value_or(tensor.scalar_type())) : iterated(tensor));
    break;
  }
  torch::jit::drop(*stack, arguments.size());
  stack->emplace_back(std::move(results));
}

// Who registered the Meta backend's kernel: a file of LibTorch, a Python file, or nobody.
enum class MetaKernel { kNone, kNative, kPython };

MetaKernel meta_kernel_of(const c10::OperatorHandle& op) {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return MetaKernel::kNone;
  const std::string state = op.dumpComputedTable();
  const size_t begin = state.find("\nMeta: ");
  if (begin == std::string::npos) return MetaKernel::kNone;
  const std::string line = state.substr(begin + 1, state.find('\n', begin + 1) - begin - 1);
  if (line.find("fallback") != std::string::npos) return MetaKernel::kNone;
  return line.find(".py:") == std::string::npos ? MetaKernel::kNative : MetaKernel::kPython;
}

const c10::KernelFunction* meta_backend() {
  static const auto kernel = c10::KernelFunction::makeFromBoxedFunction<&call_meta_backend>();
  return &kernel;
}

}  // namespace

const c10::KernelFunction* find_shape_kernel(const c10::OperatorHandle& op) {
  static const Table table = make_table();
  static const auto foreach = c10::KernelFunction::makeFromBoxedFunction<&call_foreach>();
  if (const auto found = table.find(op.operator_name()); found != table.end()) return &found->second;
  if (op.schema().name().starts_with("aten::_foreach_")) return &foreach;
  return meta_kernel_of(op) == MetaKernel::kNative ? meta_backend() : nullptr;
}

const c10::KernelFunction* find_slow_shape_kernel(const c10::OperatorHandle& op) {
  return meta_kernel_of(op) == MetaKernel::kPython ? meta_backend() : nullptr;
}

at::Tensor dense(at::IntArrayRef sizes, c10::ScalarType dtype, c10::MemoryFormat format) {
  return at::detail::empty_meta(sizes, dtype, format);
}

at::Tensor dense_like(const at::Tensor& tensor, c10::ScalarType dtype) {
  if (tensor.is_non_overlapping_and_dense())
    return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), dtype);
  return at::detail::empty_strided_meta(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()),
                                        dtype);
}

at::Tensor suggested_like(const at::Tensor& tensor, c10::ScalarType dtype) {
  return dense(tensor.sizes(), dtype, tensor.suggest_memory_format());
}

}  // namespace stepc
