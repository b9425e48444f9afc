// The ATen call of every core op: it runs nodes without a kernel of stepc's, on any strided tensors. A composite runs
// as its decomposition, unless it has an ATen kernel of its own (attention).
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/graph.h"

namespace stepc {

// Maps operands and attributes (complete, as in a Graph) to results, in new memory or as views of the operands. `types`
// are the node's result types; the caller casts the results to them.
using AtenFn = std::vector<at::Tensor> (*)(const std::vector<at::Tensor>& x, const Attrs& attrs,
                                           const std::vector<TensorType>& types);
// The call of an op without operands that are data: what it makes lies on `device`.
using MakingFn = at::Tensor (*)(const std::vector<at::Tensor>& x, const Attrs& attrs, const TensorType& type,
                                const c10::Device& device);
// The call of an op that replaces some elements of its first operand: `target` holds that operand's elements.
using OverwritingFn = void (*)(const at::Tensor& target, const std::vector<at::Tensor>& x, const Attrs& attrs);

// The call of one op, looked up once.
class AtenOp {
 public:
  // Throws InternalError if the op has no ATen call: a composite without a kernel of its own.
  // `device`: where it runs.
  explicit AtenOp(std::string_view op, const c10::Device& device = c10::kCPU);
  static bool exists(std::string_view op);

  // Results have exactly the types. `target`: the place for the result of an op that overwrites its first operand,
  // perhaps that operand's own memory; undefined: new memory.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs, const Attrs& attrs,
                                     const std::vector<TensorType>& types, const at::Tensor& target = {}) const;
  [[nodiscard]] bool overwrites() const { return overwrite_ != nullptr; }

 private:
  std::string_view op_;
  c10::Device device_;
  AtenFn run_ = nullptr;
  MakingFn make_ = nullptr;
  OverwritingFn overwrite_ = nullptr;
};

namespace detail {
using AtenOps = std::map<std::string_view, AtenFn>;
const AtenOps& elementwise_aten_ops();
const AtenOps& view_aten_ops();    // windows, if the operand's strides allow them
const AtenOps& shape_aten_ops();   // other views, reduce
const AtenOps& matmul_aten_ops();  // matmul, index
const AtenOps& attention_aten_ops();
const AtenOps& loss_aten_ops();
using MakingOps = std::map<std::string_view, MakingFn>;
const MakingOps& making_aten_ops();
// left [m, k] x right [k, n] into `out`. Operands of narrow types without CPU instructions are multiplied block by
// block in f32: the library's kernels for them take up to a hundred times as long, and some make an f32 copy of the
// whole result, in memory that ATen's allocators do not know.
void mm_out_in_blocks(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right);
at::Tensor mm_in_blocks(const at::Tensor& left, const at::Tensor& right);
using OverwritingOps = std::map<std::string_view, OverwritingFn>;
const OverwritingOps& shape_overwriting_ops();
const OverwritingOps& index_overwriting_ops();
}  // namespace detail

}  // namespace stepc
