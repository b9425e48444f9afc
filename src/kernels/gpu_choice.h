// What the libraries' kernels on a GPU take beside their operands and results, in bytes; who runs what, choose_kernel()
// says.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/kernel_choice.h"

namespace stepc {

// What torch gives a handle of cuBLAS to work in.
uint64_t cublas_workspace_bytes(const Features& features);

// Of a matmul in float8, which takes both operands with the sums' dimension innermost: copies of those that lie
// otherwise (cuBLAS documentation, cublasLtMatmul, "FP8 kernels").
uint64_t gpu_scaled_matmul_bytes(const Attrs& attrs, std::span<const TensorLayout> inputs);

std::string gpu_attention_kernel(DType dtype, bool has_documents);
// Where each document of queries of (batch, heads, length, width) begins: as many as there are tokens, at most.
uint64_t gpu_documents_bytes(const Shape& q);
// Of attention's backward pass on (gradient, q, k, v), each (batch, heads, length, width): flash attention sums the
// queries' gradients in f32 and has a sum of products a query; the gradients of keys and values that query heads share
// are summed from those of each.
uint64_t gpu_attention_backward_bytes(std::span<const TensorLayout> inputs);

// Tokens of a chunk of a linear layer with its cross-entropy: enough for every multiprocessor to have tiles of a
// product with tens of thousands of columns.
inline constexpr int64_t kGpuLossChunk = 1024;
// What that takes: the chunk's logits, in which their gradients are written, and, where chunks are summed in a narrow
// type, the weight's gradient in f32.
uint64_t gpu_loss_bytes(const Attrs& attrs, std::span<const TensorLayout> inputs, int64_t chunk);

// Of an op of the table that has no kernel of its own. What is added where an index says is sorted by it first.
uint64_t gpu_index_bytes(const Node& node, std::span<const TensorLayout> inputs);

}  // namespace stepc
