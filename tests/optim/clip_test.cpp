#include "optim/clip.h"

#include <gtest/gtest.h>

#include <torch/nn/utils/clip_grad.h>

#include "base/check.h"

namespace stepc::optim {
namespace {

std::vector<at::Tensor> parameters_with_grads(at::ScalarType dtype, double factor) {
  std::vector<at::Tensor> parameters;
  for (const int64_t size : {3, 50, 7}) {
    at::Tensor p = at::zeros({size, 2}, dtype).requires_grad_(true);
    p.mutable_grad() = (at::arange(size * 2, at::kDouble).view({size, 2}).cos() * factor).to(dtype);
    parameters.push_back(p);
  }
  parameters.push_back(at::zeros({4}, dtype).requires_grad_(true));  // no gradient
  return parameters;
}

TEST(Clip, ScalesByTheGlobalNorm) {
  for (const double factor : {10.0, 1e-3}) {
    const auto parameters = parameters_with_grads(at::kDouble, factor);
    double squares = 0;
    std::vector<at::Tensor> before;
    for (size_t i = 0; i < 3; ++i) {
      before.push_back(parameters[i].grad().clone());
      squares += before[i].square().sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    const double scale = std::min(1.0, 0.5 / (norm + 1e-6));
    EXPECT_NEAR(clip_grad_norm_(parameters, 0.5).item<double>(), norm, 1e-12 * norm);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(parameters[i].grad(), before[i] * scale, 1e-14, 0));
  }
}

TEST(Clip, AgreesWithLibTorchInFloat32) {
  const auto mine = parameters_with_grads(at::kFloat, 3.0);
  const auto theirs = parameters_with_grads(at::kFloat, 3.0);
  EXPECT_FLOAT_EQ(clip_grad_norm_(mine, 1.0).item<float>(),
                  static_cast<float>(torch::nn::utils::clip_grad_norm_(theirs, 1.0)));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(mine[i].grad(), theirs[i].grad(), 1e-6, 0));
}

TEST(Clip, NormOfBfloat16GradientsIsFloat32) {
  const auto parameters = parameters_with_grads(at::kBFloat16, 1.0);
  double squares = 0;
  for (size_t i = 0; i < 3; ++i) squares += parameters[i].grad().to(at::kDouble).square().sum().item<double>();
  const at::Tensor norm = clip_grad_norm_(parameters, 1.0);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
  EXPECT_EQ(parameters[0].grad().scalar_type(), at::kBFloat16);
}

// Where float32 sums grow so large that what is added to them is rounded away, in eager kernels too.
TEST(Clip, NormOfALargeTensorIsRightToItsLastDigits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor p = at::zeros({8 << 20}, dtype).requires_grad_(true);
    p.mutable_grad() = at::full({8 << 20}, 1.1, dtype);
    const double norm = p.grad()[0].item<double>() * std::sqrt(8 << 20);
    EXPECT_NEAR(clip_grad_norm_({p}, 1e9).item<double>(), norm, 1e-6 * norm);
  }
}

TEST(Clip, RefusesNothingToClip) {
  EXPECT_THROW(clip_grad_norm_({}, 1.0), UserError);
  EXPECT_THROW(clip_grad_norm_({at::zeros({2}).requires_grad_(true)}, 1.0), UserError);
  EXPECT_THROW(clip_grad_norm_(parameters_with_grads(at::kFloat, 1.0), 0.0), UserError);
}

}  // namespace
}  // namespace stepc::optim
