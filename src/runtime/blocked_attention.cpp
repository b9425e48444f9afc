#include "runtime/blocked_attention.h"

#include <ATen/Parallel.h>

#include "base/check.h"
#include "blocked/attention.h"
#include "ir/alignment.h"
#include "runtime/blocked_operands.h"

namespace stepc {

namespace {
using at::Tensor;

blocked::HeadStrides strides_of(const Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }
blocked::HeadTensor read(const Tensor& x) { return {x.const_data_ptr(), strides_of(x)}; }
blocked::HeadResult write(const Tensor& x) { return {x.mutable_data_ptr(), strides_of(x)}; }

// Broadcast to (batch, heads, queries, keys).
std::optional<blocked::AttentionMask> mask_of(const Tensor& mask) {
  blocked::AttentionMask out;
  if (mask.scalar_type() == at::kBool)
    out.kind = blocked::AttentionMask::Kind::kBool;
  else if (mask.scalar_type() == at::kFloat)
    out.kind = blocked::AttentionMask::Kind::kF32;
  else if (mask.scalar_type() == at::kBFloat16)
    out.kind = blocked::AttentionMask::Kind::kBf16;
  else
    return std::nullopt;
  out.data = mask.const_data_ptr();
  out.batch_stride = mask.stride(0);
  out.head_stride = mask.stride(1);
  out.query_stride = mask.stride(2);
  out.key_stride = mask.stride(3);
  return out;
}

Tensor heads(const Shape& shape, const Tensor& like) {
  return at::empty_strided(shape, attention_strides(shape), like.options());
}

// The call on operands as the kernel reads them.
struct BoundAttention {
  blocked::Attention call;
  Tensor q, k, v, mask;
  uint64_t copied_bytes = 0;  // of operands whose heads did not lie dense
};

Tensor with_dense_heads(const Tensor& x, uint64_t& copied_bytes) {
  if (x.stride(3) == 1 || x.size(3) == 1) return x;
  copied_bytes += aligned(x.nbytes());
  return x.contiguous();
}

bool is_backward(const Node& node) { return node.op == "attention_backward"; }

std::optional<BoundAttention> bind(const Node& node, const std::vector<Tensor>& x) {
  const size_t first = is_backward(node) ? 1 : 0;
  const size_t mask_place = is_backward(node) ? 6 : 3;
  const std::optional<blocked::Number> type = number_of(x[first].scalar_type());
  if (!type.has_value()) return std::nullopt;
  BoundAttention bound;
  bound.q = with_dense_heads(x[first], bound.copied_bytes);
  bound.k = with_dense_heads(x[first + 1], bound.copied_bytes);
  bound.v = with_dense_heads(x[first + 2], bound.copied_bytes);

  blocked::Attention& call = bound.call;
  call.type = *type;
  call.batch = bound.q.size(0);
  call.heads = bound.q.size(1);
  call.key_heads = bound.k.size(1);
  call.queries = bound.q.size(2);
  call.keys = bound.k.size(2);
  call.dim = bound.q.size(3);
  call.value_dim = bound.v.size(3);
  call.scale = static_cast<float>(node.attrs.get<double>("scale"));
  if (node.attrs.get<bool>("causal")) call.after = 0;
  call.q = read(bound.q);
  call.k = read(bound.k);
  call.v = read(bound.v);
  if (x.size() > mask_place) {
    bound.mask = x[mask_place].expand({call.batch, call.heads, call.queries, call.keys});
    const std::optional<blocked::AttentionMask> bias = mask_of(bound.mask);
    if (!bias.has_value()) return std::nullopt;
    call.mask = *bias;
  }
  return bound;
}
}  // namespace

Shape attention_strides(const Shape& shape) {
  if (shape.size() != 4) return contiguous_strides(shape);
  return {shape[1] * shape[2] * shape[3], shape[3], shape[1] * shape[3], 1};
}

uint64_t blocked_attention_scratch(const Node& node, const std::vector<Tensor>& x, const blocked::MicroKernels&,
                                   int threads) {
  std::optional<BoundAttention> bound = bind(node, x);
  if (!bound.has_value()) return 0;
  uint64_t bytes = is_backward(node) ? blocked::backward_workspace_bytes(bound->call, threads)
                                     : blocked::workspace_bytes(bound->call, threads);
  if (is_backward(node)) {  // the gradient and the output too
    with_dense_heads(x[0], bound->copied_bytes);
    with_dense_heads(x[4], bound->copied_bytes);
  }
  return aligned(bytes) + bound->copied_bytes;
}

std::optional<std::vector<Tensor>> run_blocked_attention(const Node& node, const std::vector<Tensor>& x,
                                                         const blocked::MicroKernels& kernels) {
  const std::optional<BoundAttention> bound = bind(node, x);
  if (!bound.has_value()) return std::nullopt;
  const blocked::Attention& call = bound->call;
  const int threads = at::get_num_threads();
  const Shape rows = {call.batch, call.heads, call.queries};
  if (!is_backward(node)) {
    const Tensor out = heads({call.batch, call.heads, call.queries, call.value_dim}, bound->q);
    const Tensor sums = at::empty(rows, at::kFloat);
    const Tensor scratch = workspace(blocked::workspace_bytes(call, threads));
    blocked::attention(call, write(out), sums.mutable_data_ptr<float>(), kernels, threads, memory_of(scratch));
    return {{out, sums}};
  }
  uint64_t copied_bytes = 0;
  const Tensor gradient = with_dense_heads(x[0], copied_bytes);
  const Tensor out = with_dense_heads(x[4], copied_bytes);
  const Tensor sums = x[5].contiguous();
  const Tensor dq = heads(bound->q.sizes().vec(), bound->q);
  const Tensor dk = heads(bound->k.sizes().vec(), bound->k);
  const Tensor dv = heads(bound->v.sizes().vec(), bound->v);
  const Tensor scratch = workspace(blocked::backward_workspace_bytes(call, threads));
  blocked::attention_backward(
      call, {read(gradient), read(out), sums.const_data_ptr<float>(), write(dq), write(dk), write(dv)}, kernels,
      threads, memory_of(scratch));
  return {{dq, dk, dv}};
}

}  // namespace stepc
