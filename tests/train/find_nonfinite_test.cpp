#include "train/step/find_nonfinite.h"

#include <limits>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "base/module_scope.h"

namespace stepc::train {
namespace {

TEST(FindNonfinite, NamesTheModuleAndTheOp) {
  const at::Tensor large = at::full({4}, 1e30);
  const auto forward = find_nonfinite([&] {
    const ModuleScope outer("model");
    (void)at::empty({100});  // memory that may hold anything
    const at::Tensor mask = at::full({4}, -std::numeric_limits<float>::infinity());
    (void)at::softmax(at::cat({large, mask}), 0);
    const ModuleScope inner("mlp");
    (void)large.mul(large);
  });
  EXPECT_EQ(forward, "model.mlp (mul)");
  EXPECT_EQ(find_nonfinite([&] { (void)large.add(large); }), std::nullopt);
  EXPECT_EQ(find_nonfinite([&] { (void)large.mul(large); }), "the loss (mul)");
}

TEST(FindNonfinite, NamesTheModuleOfABackwardPass) {
  const at::Tensor zero = at::zeros({1}).requires_grad_();
  const auto found = find_nonfinite([&] {
    at::Tensor loss;
    {
      const ModuleScope scope("norm");
      loss = zero.sqrt();  // its derivative at 0 is infinite
    }
    loss.sum().backward();
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->starts_with("the backward of norm (")) << *found;
}

}  // namespace
}  // namespace stepc::train
