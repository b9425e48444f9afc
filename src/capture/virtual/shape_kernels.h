// Kernels that compute the geometry of an operator's results and nothing else: they take and return meta tensors, with
// the operator's own C++ signature. Three sources, in this order: LibTorch's structured operators, whose shape function
// is the one that the CPU kernel itself calls; ours, for operators that have none; and what is registered for the Meta
// backend, if it is C++ (in a Python process most of those are replaced by slower Python functions).
//
// A shape kernel answers what the CPU kernel would: tests/capture/shape_kernels_test.cpp compares them on every row.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace stepc {

struct ShapeKernel {
  c10::OperatorName op;
  c10::KernelFunction kernel;
};
using ShapeKernels = std::vector<ShapeKernel>;

// One row: Op is the operator's struct in at::_ops, which picks the overload.
template <class Op>
ShapeKernel shape_kernel(typename Op::schema* function) {
  return {{Op::name, Op::overload_name}, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)};
}

// The rows of each file.
ShapeKernels structured_shapes();
ShapeKernels elementwise_shapes();
ShapeKernels copy_shapes();
ShapeKernels index_shapes();
ShapeKernels norm_shapes();
ShapeKernels attention_shapes();
ShapeKernels convolution_shapes();
ShapeKernels pooling_shapes();

// The kernel to use for `op`, nullptr if there is none.
const c10::KernelFunction* find_shape_kernel(const c10::OperatorHandle& op);
// What else is registered for the Meta backend: a Python function, which takes 50 microseconds and may answer with
// other strides than the kernel's.
const c10::KernelFunction* find_slow_shape_kernel(const c10::OperatorHandle& op);

// ---- for the rows

// A new dense meta tensor, and one with the sizes and the (made dense) strides of `tensor`.
at::Tensor dense(at::IntArrayRef sizes, c10::ScalarType dtype,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor dense_like(const at::Tensor& tensor, c10::ScalarType dtype);
inline at::Tensor dense_like(const at::Tensor& tensor) { return dense_like(tensor, tensor.scalar_type()); }
// The same in the memory format that `tensor` suggests.
at::Tensor suggested_like(const at::Tensor& tensor, c10::ScalarType dtype);

// The result of an elementwise operator of one argument, of its type.
at::Tensor iterated(const at::Tensor& tensor);

}  // namespace stepc
