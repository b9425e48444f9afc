#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

struct MatmulSizes {
  size_t rank;
  int64_t m, n, k;
  size_t a_m, a_k, b_k, b_n;  // where they are
};

MatmulSizes sizes_of(const OpCall& call) {
  const Shape& a = call.in(0).shape;
  const Shape& b = call.in(1).shape;
  INTERNAL_CHECK(a.size() >= 2 && a.size() == b.size(), "matmul of {} and {} dimensions", a.size(), b.size());
  const size_t rank = a.size();
  const bool ta = call.attrs.get<bool>("transpose_a");
  const bool tb = call.attrs.get<bool>("transpose_b");
  MatmulSizes s{rank, 0, 0, 0, rank - (ta ? 1 : 2), rank - (ta ? 2 : 1), rank - (tb ? 1 : 2), rank - (tb ? 2 : 1)};
  s.m = a[s.a_m];
  s.k = a[s.a_k];
  s.n = b[s.b_n];
  INTERNAL_CHECK_EQ(s.k, b[s.b_k], "the contracted dimension");
  for (size_t d = 0; d + 2 < rank; ++d) INTERNAL_CHECK_EQ(a[d], b[d], "batch dimension {}", d);
  return s;
}

std::vector<TensorType> infer_matmul(const OpCall& call) {
  check_same_dtype(call);
  const MatmulSizes s = sizes_of(call);
  Shape shape(call.in(0).shape.begin(), call.in(0).shape.end() - 2);
  shape.push_back(s.m);
  shape.push_back(s.n);
  return {typed(call.in(0).dtype, shape)};
}

ShardingRule shard_matmul(const OpCall& call, const std::vector<TensorType>& results) {
  const MatmulSizes s = sizes_of(call);
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  for (size_t d = 0; d + 2 < s.rank; ++d) {
    const int batch = rule.add(call.in(0).shape[d]);
    rule.on_operand(batch, 0, d);
    rule.on_operand(batch, 1, d);
    rule.on_result(batch, 0, d);
  }
  const int m = rule.add(s.m);
  rule.on_operand(m, 0, s.a_m);
  rule.on_result(m, 0, s.rank - 2);
  const int n = rule.add(s.n);
  rule.on_operand(n, 1, s.b_n);
  rule.on_result(n, 0, s.rank - 1);
  const int k = rule.add(s.k, Factor::Kind::kSum);
  rule.on_operand(k, 0, s.a_k);
  rule.on_operand(k, 1, s.b_k);
  return rule;
}

// Scales of a scaled matmul: one number, or one for each row of the left operand or column of the right one.
void check_scales(const TensorType& scales, size_t dim, int64_t count) {
  INTERNAL_CHECK_EQ(name_of(scales.dtype), "f32", "scales");
  INTERNAL_CHECK(
      scales.shape.size() == 2 && scales.shape[1 - dim] == 1 && (scales.shape[dim] == 1 || scales.shape[dim] == count),
      "scales of {} for {} rows or columns", to_text(scales), count);
}

std::vector<TensorType> infer_scaled_matmul(const OpCall& call) {
  for (size_t i = 0; i < 2; ++i)
    INTERNAL_CHECK(is_float8(call.in(i).dtype), "a scaled matmul of {}", name_of(call.in(i).dtype));
  const MatmulSizes s = sizes_of(call);
  INTERNAL_CHECK_EQ(s.rank, 2U, "dimensions of a scaled matmul");
  check_scales(call.in(2), 0, s.m);
  check_scales(call.in(3), 1, s.n);
  return {typed(call.attrs.get<DType>("dtype"), {s.m, s.n})};
}

ShardingRule shard_scaled_matmul(const OpCall& call, const std::vector<TensorType>& results) {
  const MatmulSizes s = sizes_of(call);
  ShardingRule rule = ShardingRule::whole(call.inputs, results);
  const int m = rule.add(s.m);
  rule.on_operand(m, 0, s.a_m);
  rule.on_result(m, 0, 0);
  if (call.in(2).shape[0] == s.m) rule.on_operand(m, 2, 0);
  const int n = rule.add(s.n);
  rule.on_operand(n, 1, s.b_n);
  rule.on_result(n, 0, 1);
  if (call.in(3).shape[1] == s.n) rule.on_operand(n, 3, 1);
  const int k = rule.add(s.k, Factor::Kind::kSum);
  rule.on_operand(k, 0, s.a_k);
  rule.on_operand(k, 1, s.b_k);
  return rule;
}

std::vector<TensorId> decompose_scaled_matmul(GraphBuilder& b, const std::vector<TensorId>& in, const Attrs& attrs) {
  const TensorId product =
      b.add("matmul", {b.cast(in[0], DType::kF32), b.cast(in[1], DType::kF32)},
            {{"transpose_a", attrs.get<bool>("transpose_a")}, {"transpose_b", attrs.get<bool>("transpose_b")}});
  const TensorId scaled = b.add("mul", {b.add("mul", {product, in[2]}), in[3]});
  return {b.cast(scaled, attrs.get<DType>("dtype"))};
}

double flops_matmul(const OpCall& call, const std::vector<TensorType>& results) {
  return 2 * count_of(results[0]) * static_cast<double>(sizes_of(call).k);
}

// ---- sums: what is added, then the operands

OpCall product_of(const OpCall& call) { return {{call.in(1), call.in(2)}, call.attrs}; }

std::vector<TensorType> infer_matmul_add(const OpCall& call) {
  const std::vector<TensorType> product = infer_matmul(product_of(call));
  INTERNAL_CHECK(product[0].shape.size() == 2 && call.in(0) == product[0], "{} added to a product of {}",
                 to_text(call.in(0)), to_text(product[0]));
  return product;
}
std::vector<TensorType> infer_matmul_bias(const OpCall& call) {
  const std::vector<TensorType> product = infer_matmul(product_of(call));
  const bool is_row = product[0].shape.size() == 2 && call.in(0) == typed(product[0].dtype, {product[0].shape[1]});
  INTERNAL_CHECK(is_row, "{} added to each row of a product of {}", to_text(call.in(0)), to_text(product[0]));
  return product;
}

TensorId sum_of(GraphBuilder& b, const std::vector<TensorId>& in, const Attrs& attrs) {
  const DType acc = wide(b.dtype(in[0]));
  const TensorId product =
      b.add("matmul", {b.cast(in[1], acc), b.cast(in[2], acc)},
            {{"transpose_a", attrs.get<bool>("transpose_a")}, {"transpose_b", attrs.get<bool>("transpose_b")}});
  return b.add("add", {product, b.cast(in[0], acc)});
}
std::vector<TensorId> decompose_matmul_add(GraphBuilder& b, const std::vector<TensorId>& in, const Attrs& attrs) {
  return {b.cast(sum_of(b, in, attrs), b.dtype(in[0]))};
}
std::vector<TensorId> decompose_matmul_bias(GraphBuilder& b, const std::vector<TensorId>& in, const Attrs& attrs) {
  const TensorId sum = sum_of(b, in, attrs);
  return {b.cast(attrs.get<bool>("relu") ? b.add("relu", {sum}) : sum, b.dtype(in[0]))};
}

double flops_matmul_sum(const OpCall& call, const std::vector<TensorType>& results) {
  return flops_matmul(product_of(call), results) + count_of(results[0]);
}

}  // namespace

OpFamily matmul_ops() {
  return {
      "matmul",
      "Products of matrices; sums are kept in f32 for bf16 and f16.",
      {{"matmul",
        "(batch..., m, k) x (batch..., k, n); transpose_a and transpose_b: the last two dimensions are swapped",
        2,
        2,
        1,
        {{"transpose_a", AttrKind::kBool, AttrValue(false)}, {"transpose_b", AttrKind::kBool, AttrValue(false)}},
        static_cast<uint32_t>(Trait::kContraction),
        infer_matmul,
        shard_matmul,
        flops_matmul,
        nullptr,
        nullptr,
        nullptr,
        {},
        OwnKernel::kMatmul},
       {"scaled_matmul",
        "(a, b, scales of a's rows (m or 1, 1), scales of b's columns (1, n or 1)): of float8 matrices the f32 "
        "product of their values, times the scales, as `dtype`",
        4,
        4,
        1,
        {{"transpose_a", AttrKind::kBool, AttrValue(false)},
         {"transpose_b", AttrKind::kBool, AttrValue(false)},
         {"dtype", AttrKind::kDType, {}}},
        Trait::kComposite | Trait::kContraction,
        infer_scaled_matmul,
        shard_scaled_matmul,
        flops_matmul,
        nullptr,
        decompose_scaled_matmul,
        nullptr,
        {},
        OwnKernel::kScaledMatmul},
       {"matmul_add",
        "(c, a, b): c and the product of the matrices a and b",
        3,
        3,
        1,
        {{"transpose_a", AttrKind::kBool, AttrValue(false)}, {"transpose_b", AttrKind::kBool, AttrValue(false)}},
        Trait::kComposite | Trait::kContraction | Trait::kOverwrites,
        infer_matmul_add,
        nullptr,
        flops_matmul_sum,
        nullptr,
        decompose_matmul_add,
        nullptr,
        {},
        OwnKernel::kMatmulSum},
       {"matmul_bias",
        "(c, a, b): the product of the matrices a and b, with c added to each row; `relu`: and what is below 0 as 0",
        3,
        3,
        1,
        {{"transpose_a", AttrKind::kBool, AttrValue(false)},
         {"transpose_b", AttrKind::kBool, AttrValue(false)},
         {"relu", AttrKind::kBool, AttrValue(false)}},
        Trait::kComposite | Trait::kContraction,
        infer_matmul_bias,
        nullptr,
        flops_matmul_sum,
        nullptr,
        decompose_matmul_bias,
        nullptr,
        {},
        OwnKernel::kMatmulSum}}};
}

}  // namespace stepc
