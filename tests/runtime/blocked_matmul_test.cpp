#include "runtime/blocked_matmul.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "ops/op_def.h"

namespace stepc {
namespace {

using at::Tensor;

Node product(bool turn_a, bool turn_b) {
  Node node;
  node.op = "matmul";
  node.attrs = complete_attrs(op_def("matmul"), {{"transpose_a", turn_a}, {"transpose_b", turn_b}});
  return node;
}

TEST(BlockedMatmul, IsTheProductHoweverTheOperandsLie) {
  at::manual_seed(1);
  blocked::MicroKernels here = blocked::probe_micro_kernels();
  here.intel = false;
  int run = 0;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (int lay = 0; lay < 16; ++lay) {
      const bool turn_a = (lay & 1) != 0, turn_b = (lay & 2) != 0, lie_a = (lay & 4) != 0, lie_b = (lay & 8) != 0;
      const Tensor a = at::randn({33, 50}).to(type), b = at::randn({50, 70}).to(type);
      // Turned in the attribute, turned in memory, or both.
      const auto laid = [](const Tensor& x, bool turned, bool columns) {
        const Tensor shown = turned ? x.t() : x;
        return columns ? shown.t().contiguous().t() : shown.contiguous();
      };
      const auto mine =
          run_blocked_matmul(product(turn_a, turn_b), {laid(a, turn_a, lie_a), laid(b, turn_b, lie_b)}, here);
      const ProductRule rule = product_rule(here);
      ASSERT_EQ(mine.has_value(), type == at::kFloat ? rule.f32 : rule.bf16);
      if (!mine) continue;
      ++run;
      const Tensor right = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      const double error = ((*mine)[0].to(at::kDouble) - right).norm().item<double>() / right.norm().item<double>();
      EXPECT_LE(error, type == at::kFloat ? 1e-6 : 4e-3) << lay;
      EXPECT_EQ((*mine)[0].scalar_type(), type);
    }
  EXPECT_EQ(run > 0, here.avx512 && (here.bf16 || here.f32));
}

TEST(BlockedMatmul, OthersAreNotForIt) {
  blocked::MicroKernels here{true, true, true};
  const auto runs = [&](const Tensor& a, const Tensor& b) {
    return blocked_matmul_scratch(product(true, false), {a, b}, here, 2) != 0;
  };
  const auto meta = [](at::IntArrayRef shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions(type).device(at::kMeta));
  };
  EXPECT_TRUE(runs(meta({64, 64}, at::kBFloat16), meta({64, 64}, at::kBFloat16)));
  EXPECT_TRUE(runs(meta({64, 64}, at::kFloat), meta({64, 64}, at::kFloat)));
  EXPECT_FALSE(runs(meta({2, 64, 64}, at::kBFloat16), meta({2, 64, 64}, at::kBFloat16)));
  EXPECT_FALSE(runs(meta({0, 64}, at::kBFloat16), meta({0, 64}, at::kBFloat16)));
  EXPECT_FALSE(runs(meta({64, 64}, at::kDouble), meta({64, 64}, at::kDouble)));
  EXPECT_FALSE(runs(meta({4096, 8192}, at::kBFloat16), meta({4096, 64}, at::kBFloat16))) << "too much to turn";
  here.intel = true;
  EXPECT_FALSE(runs(meta({64, 64}, at::kFloat), meta({64, 64}, at::kFloat)));
}

}  // namespace
}  // namespace stepc
