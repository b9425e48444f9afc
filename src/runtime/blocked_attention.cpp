#include "runtime/blocked_attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "blocked/attention.h"

namespace stepc {

namespace {
using at::Tensor;

blocked::HeadStrides strides_of(const Tensor& x) { return {x.stride(0), x.stride(1), x.stride(2)}; }
blocked::HeadTensor read(const Tensor& x) { return {x.const_data_ptr(), strides_of(x)}; }
blocked::HeadResult write(const Tensor& x) { return {x.mutable_data_ptr(), strides_of(x)}; }
Tensor with_dense_heads(const Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

std::optional<blocked::Number> number_of(at::ScalarType type) {
  if (type == at::kFloat) return blocked::Number::kF32;
  if (type == at::kBFloat16) return blocked::Number::kBf16;
  return std::nullopt;
}

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

Tensor workspace(size_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::kByte); }
void* memory_of(const Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr(); }

// Laid out (batch, sequence, heads, dim), as the projections around attention read and write it.
Tensor heads_like(const Tensor& x, int64_t dim) {
  return at::empty({x.size(0), x.size(2), x.size(1), dim}, x.options()).transpose(1, 2);
}
}  // namespace

std::optional<std::vector<Tensor>> run_blocked_attention(const Node& node, const std::vector<Tensor>& x,
                                                         const blocked::MicroKernels& kernels) {
  const bool backward = node.op == "attention_backward";
  const size_t first = backward ? 1 : 0;
  const size_t mask_place = backward ? 6 : 3;
  const std::optional<blocked::Number> type = number_of(x[first].scalar_type());
  if (!type.has_value()) return std::nullopt;
  const Tensor q = with_dense_heads(x[first]);
  const Tensor k = with_dense_heads(x[first + 1]);
  const Tensor v = with_dense_heads(x[first + 2]);

  blocked::Attention call;
  call.type = *type;
  call.batch = q.size(0);
  call.heads = q.size(1);
  call.key_heads = k.size(1);
  call.queries = q.size(2);
  call.keys = k.size(2);
  call.dim = q.size(3);
  call.value_dim = v.size(3);
  call.scale = static_cast<float>(node.attrs.get<double>("scale"));
  if (node.attrs.get<bool>("causal")) call.after = 0;
  call.q = read(q);
  call.k = read(k);
  call.v = read(v);
  Tensor mask;
  if (x.size() > mask_place) {
    mask = x[mask_place].expand({call.batch, call.heads, call.queries, call.keys});
    const std::optional<blocked::AttentionMask> bias = mask_of(mask);
    if (!bias.has_value()) return std::nullopt;
    call.mask = *bias;
  }

  const int threads = at::get_num_threads();
  if (!backward) {
    const Tensor out = heads_like(q, call.value_dim);
    const Tensor sums = at::empty({call.batch, call.heads, call.queries}, at::kFloat);
    const Tensor scratch = workspace(blocked::workspace_bytes(call, threads));
    blocked::attention(call, write(out), sums.mutable_data_ptr<float>(), kernels, threads, memory_of(scratch));
    return {{out, sums}};
  }
  const Tensor gradient = with_dense_heads(x[0]);
  const Tensor out = with_dense_heads(x[4]);
  const Tensor sums = x[5].contiguous();
  const Tensor dq = heads_like(q, call.dim);
  const Tensor dk = heads_like(k, call.dim);
  const Tensor dv = heads_like(v, call.value_dim);
  const Tensor scratch = workspace(blocked::backward_workspace_bytes(call, threads));
  blocked::attention_backward(
      call, {read(gradient), read(out), sums.const_data_ptr<float>(), write(dq), write(dk), write(dv)}, kernels,
      threads, memory_of(scratch));
  return {{dq, dk, dv}};
}

}  // namespace stepc
