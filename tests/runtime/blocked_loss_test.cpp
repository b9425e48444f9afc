#include "runtime/blocked_loss.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "ops/op_def.h"
#include "runtime/aten_ops.h"

namespace stepc {
namespace {

using at::Tensor;

struct Case {
  Node node;
  std::vector<Tensor> inputs;
  std::vector<TensorType> types;
};

Case make_case(DType dtype, size_t operands, bool frozen, bool gaps) {
  const int64_t tokens = 37, width = 24, classes = 75;
  const at::ScalarType type = dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
  const Tensor hidden = at::randn({width, tokens}).to(type);
  Case one;
  one.node.op = "linear_cross_entropy";
  one.node.attrs = complete_attrs(op_def(one.node.op), {{"frozen", frozen}, {"gradient_dtype", DType::kF32}});
  // Rows that lie apart, columns that lie apart, and one gradient for all.
  one.inputs = {gaps ? hidden.t() : hidden.t().contiguous(),
                at::randn({classes, gaps ? 2 * width : width}).to(type).narrow(1, 0, width),
                at::randint(0, classes, {tokens}, at::kLong), at::full({1}, 0.5).expand({tokens}), at::randn({tokens})};
  one.inputs[2].narrow(0, 3, 9).fill_(-100);
  one.inputs.resize(operands);
  const std::vector<TensorType> all = {{dtype, {tokens, width}},
                                       {dtype, {classes, width}},
                                       {DType::kI64, {tokens}},
                                       {DType::kF32, {tokens}},
                                       {DType::kF32, {tokens}}};
  one.types =
      infer_types(op_def(one.node.op), {{all.begin(), all.begin() + static_cast<ssize_t>(operands)}, one.node.attrs});
  return one;
}

TEST(BlockedLoss, IsWhatATenMakesOfTheNode) {
  at::manual_seed(1);
  const blocked::MicroKernels here = blocked::probe_micro_kernels();
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool gaps : {false, true})
      for (const bool frozen : {false, true})
        for (size_t operands = 3; operands <= 5; ++operands) {
          if (!(dtype == DType::kF32 ? here.f32 : here.bf16)) continue;
          const Case one = make_case(dtype, operands, frozen, gaps);
          const auto mine = run_blocked_loss(one.node, one.inputs, here);
          ASSERT_TRUE(mine.has_value());
          const std::vector<Tensor> theirs = run_aten_op(one.node, one.inputs, one.types);
          for (size_t r = 0; r < theirs.size(); ++r) {
            ASSERT_EQ((*mine)[r].sizes(), theirs[r].sizes());
            ASSERT_EQ((*mine)[r].scalar_type(), theirs[r].scalar_type());
            const double size = theirs[r].to(at::kDouble).norm().item<double>();
            const double error = ((*mine)[r].to(at::kDouble) - theirs[r].to(at::kDouble)).norm().item<double>();
            EXPECT_LE(error, (dtype == DType::kF32 ? 1e-5 : 2e-2) * size) << "result " << r << " of " << operands;
          }
        }
}

TEST(BlockedLoss, ATypeWithoutAMicroKernelIsNotForIt) {
  const Case one = make_case(DType::kF32, 4, false, false);
  EXPECT_FALSE(run_blocked_loss(one.node, one.inputs, {true, false, true}).has_value());
}

TEST(BlockedLoss, ScratchIsKnownWithoutMemory) {
  const blocked::MicroKernels here{true, true, false};
  for (const bool gaps : {false, true}) {
    const Case one = make_case(DType::kBF16, 4, false, gaps);
    std::vector<Tensor> shapes;
    for (const Tensor& input : one.inputs)
      shapes.push_back(at::empty_strided(input.sizes(), input.strides(), input.options().device(at::kMeta)));
    EXPECT_EQ(blocked_loss_scratch(one.node, shapes, here, 2), blocked_loss_scratch(one.node, one.inputs, here, 2));
    EXPECT_GT(blocked_loss_scratch(one.node, shapes, here, 2), 37U * 75U * 2U);
  }
}

}  // namespace
}  // namespace stepc
