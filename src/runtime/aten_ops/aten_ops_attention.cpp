// Attention on ATen, whose kernels want as many key heads as query heads, and the elements of a head side by side.
#include <cmath>
#include <optional>

#include <ATen/Functions.h>

#include "runtime/aten_ops/aten_ops.h"

namespace stepc::detail {

namespace {
using Tensors = std::vector<at::Tensor>;
using Types = std::vector<TensorType>;
using at::Tensor;

Tensor dense_heads(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }
Tensor repeat_heads(const Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return dense_heads(x);
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), heads / x.size(1), x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}
Tensor sum_heads(const Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  return x.reshape({x.size(0), heads, x.size(1) / heads, x.size(2), x.size(3)}).sum(2);
}
// The mask of packed documents (ops/attention_operands.h): whether a query sees a key, (batch, 1, queries, keys).
Tensor seen_of_documents(const Tensors& x, size_t place) {
  const auto of_queries = [&](size_t i) { return x[place + i].unsqueeze(1).unsqueeze(3); };  // documents, places
  const auto of_keys = [&](size_t i) { return x[place + i].unsqueeze(1).unsqueeze(2); };
  const Tensor seen = of_queries(0).eq(of_keys(1));
  return x.size() > place + 2 ? seen.logical_and(of_keys(3).le(of_queries(2))) : seen;
}
std::optional<Tensor> mask_at(const Tensors& x, size_t place, at::ScalarType type) {
  if (x.size() <= place) return std::nullopt;
  if (x.size() == place + 1) return dense_heads(x[place].to(type));
  const Tensor seen = seen_of_documents(x, place);
  return at::zeros_like(seen, seen.options().dtype(type)).masked_fill_(seen.logical_not(), -INFINITY);
}

// ---- on CUDA: flash attention for narrow types without a mask, else the memory-efficient kernel, whose sums of
// exponentials have room for whole blocks of queries; as matmuls where neither takes the operands

enum class OnCuda : uint8_t { kFlash, kEfficient, kMatmuls };

OnCuda kernel_for(const Tensor& q, const Tensor& k, const Tensor& v, bool has_mask, bool causal) {
  constexpr int64_t kWidths = 8, kWidest = 256;
  const at::ScalarType type = q.scalar_type();
  const bool is_narrow = type == at::kBFloat16 || type == at::kHalf;
  const bool fits = q.size(3) % kWidths == 0 && v.size(3) % kWidths == 0;
  if (!fits || !(is_narrow || type == at::kFloat)) return OnCuda::kMatmuls;
  const bool is_square = q.size(2) == k.size(2) || !causal;  // flash attention counts from the last key
  const bool is_flash = is_narrow && !has_mask && is_square && q.size(3) == v.size(3) && q.size(3) <= kWidest;
  return is_flash ? OnCuda::kFlash : OnCuda::kEfficient;
}

constexpr int64_t kQueriesOfBlock = 32;

// The bias of the scores: (batch, heads, queries, keys), with keys at multiples of 16 bytes.
std::optional<Tensor> bias_at(const Tensors& x, size_t place, const Tensor& q, const Tensor& k) {
  if (x.size() <= place) return std::nullopt;
  constexpr int64_t kApart = 16;
  const Tensor bias = mask_at(x, place, q.scalar_type())->expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  const int64_t missing = (kApart - k.size(2) % kApart) % kApart;
  return at::constant_pad_nd(bias, {0, missing}, 0).narrow(-1, 0, k.size(2));
}

// The weights of the keys for each query: the exponentials of the scores over their sum.
Tensor scores_of(const Tensor& q, const Tensor& k, const std::optional<Tensor>& bias, bool causal, double scale) {
  const at::ScalarType wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor scores = at::matmul(q.to(wide), k.to(wide).mT()) * scale;
  if (bias) scores = scores + bias->to(wide);
  if (!causal) return scores;
  const Tensor later = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill(later, -INFINITY);
}
Tensor weights_of(const Tensor& scores, const Tensor& sums) {
  const Tensor weights = at::exp(scores - sums.unsqueeze(-1));
  return weights.masked_fill(sums.unsqueeze(-1) == -INFINITY, 0);  // a query that sees no key
}
Tensors attention_by_matmuls(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                             bool causal, double scale) {
  const Tensor scores = scores_of(q, k, bias, causal, scale);
  const Tensor sums = at::logsumexp(scores, {-1});
  return {at::matmul(weights_of(scores, sums), v.to(scores.scalar_type())).to(q.scalar_type()), sums};
}
Tensors backward_by_matmuls(const Tensor& gradient, const Tensors& qkv, const Tensor& out, const Tensor& sums,
                            const std::optional<Tensor>& bias, bool causal, double scale) {
  const Tensor scores = scores_of(qkv[0], qkv[1], bias, causal, scale);
  const at::ScalarType wide = scores.scalar_type();
  const Tensor weights = weights_of(scores, sums), g = gradient.to(wide);
  const Tensor of_weights = at::matmul(g, qkv[2].to(wide).mT()) - (g * out.to(wide)).sum(-1, /*keepdim=*/true);
  const Tensor of_scores = weights * of_weights * scale;
  Tensors made = {at::matmul(of_scores, qkv[1].to(wide)), at::matmul(of_scores.mT(), qkv[0].to(wide)),
                  at::matmul(weights.mT(), g)};
  for (size_t i = 0; i < made.size(); ++i) made[i] = made[i].to(qkv[i].scalar_type());
  return made;
}

Tensors attention_on_cuda(const Tensors& x, const Attrs& attrs) {
  const int64_t heads = x[0].size(1);
  const Tensor q = dense_heads(x[0]), k = repeat_heads(x[1], heads), v = repeat_heads(x[2], heads);
  const bool causal = attrs.get<bool>("causal");
  const double scale = attrs.get<double>("scale");
  const OnCuda kernel = kernel_for(q, k, v, x.size() > 3, causal);
  if (kernel == OnCuda::kMatmuls) return attention_by_matmuls(q, k, v, bias_at(x, 3, q, k), causal, scale);
  if (kernel == OnCuda::kFlash) {
    const auto made = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, causal, false, scale);
    return {std::get<0>(made), std::get<1>(made)};
  }
  const auto made = at::_scaled_dot_product_efficient_attention(q, k, v, bias_at(x, 3, q, k), true, 0.0, causal, scale);
  return {std::get<0>(made), std::get<1>(made).narrow(2, 0, q.size(2))};
}

Tensors attention_backward_on_cuda(const Tensors& x, const Attrs& attrs) {
  const int64_t heads = x[1].size(1);
  const Tensor gradient = dense_heads(x[0]), q = dense_heads(x[1]), out = dense_heads(x[4]);
  const Tensor k = repeat_heads(x[2], heads), v = repeat_heads(x[3], heads);
  const bool causal = attrs.get<bool>("causal");
  const double scale = attrs.get<double>("scale");
  const auto shared = [&](const Tensor& dq, const Tensor& dk, const Tensor& dv) {
    return Tensors{dq, sum_heads(dk, x[2].size(1)), sum_heads(dv, x[3].size(1))};
  };
  const Tensor none = at::empty({}, q.options().dtype(at::kLong));  // seed and offset of a dropout that there is not
  const OnCuda kernel = kernel_for(q, k, v, x.size() > 6, causal);
  if (kernel == OnCuda::kMatmuls) {
    const Tensors made = backward_by_matmuls(gradient, {q, k, v}, out, x[5], bias_at(x, 6, q, k), causal, scale);
    return shared(made[0], made[1], made[2]);
  }
  if (kernel == OnCuda::kFlash) {
    const auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_backward(gradient, q, k, v, out, x[5].contiguous(), Tensor(), Tensor(),
                                                         q.size(2), k.size(2), 0.0, causal, none, none, scale);
    return shared(dq, dk, dv);
  }
  const int64_t missing = (kQueriesOfBlock - q.size(2) % kQueriesOfBlock) % kQueriesOfBlock;
  const Tensor sums = at::constant_pad_nd(x[5], {0, missing}, INFINITY);
  const Tensor bias = bias_at(x, 6, q, k).value_or(Tensor());
  const auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      gradient, q, k, v, bias, out, sums, none, none, 0.0, {true, true, true, false}, causal, scale);
  return shared(dq, dk, dv);
}

Tensors attention(const Tensors& x, const Attrs& attrs, const Types&) {
  if (x[0].is_cuda()) return attention_on_cuda(x, attrs);
  const int64_t heads = x[0].size(1);
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      dense_heads(x[0]), repeat_heads(x[1], heads), repeat_heads(x[2], heads), 0.0, attrs.get<bool>("causal"),
      mask_at(x, 3, x[0].scalar_type()), attrs.get<double>("scale"));
  return {out, sums};
}
Tensors attention_backward(const Tensors& x, const Attrs& attrs, const Types&) {
  if (x[0].is_cuda()) return attention_backward_on_cuda(x, attrs);
  const int64_t heads = x[1].size(1);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dense_heads(x[0]), dense_heads(x[1]), repeat_heads(x[2], heads), repeat_heads(x[3], heads), dense_heads(x[4]),
      x[5].contiguous(), 0.0, attrs.get<bool>("causal"), mask_at(x, 6, x[1].scalar_type()), attrs.get<double>("scale"));
  return {dq, sum_heads(dk, x[2].size(1)), sum_heads(dv, x[3].size(1))};
}
}  // namespace

const AtenOps& attention_aten_ops() {
  static const AtenOps kOps = {{"attention", attention}, {"attention_backward", attention_backward}};
  return kOps;
}

}  // namespace stepc::detail
