#include "blocked/embedding.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/blocked/reference.h"

namespace stepc::blocked {
namespace {

void run(const EmbeddingGradient& call, const MicroKernels& kernels, int threads) {
  const at::Tensor memory = dirty_memory(workspace_bytes(call, threads));
  embedding_gradient(call, kernels, threads, memory.data_ptr());
}

TEST(EmbeddingGradient, EqualsASumInTokenOrder) {
  const OneThread one;
  at::manual_seed(1);
  Random random(1);
  const std::vector<MicroKernels> all = machines();
  for (int round = 0; round < 60; ++round) {
    const Number number = random.coin() ? Number::kBf16 : Number::kF32;
    const Number out_number = random.coin() ? number : Number::kF32;
    EmbeddingGradient call;
    call.tokens = random.between(0, 300);
    call.rows = random.one_of<int64_t>({1, 7, 256, 257, 600});
    call.width = random.one_of<int64_t>({1, 15, 16, 33, 64});
    call.type = number;
    call.result_type = out_number;
    call.accumulate = random.coin();
    call.padding_row = random.coin() ? 0 : -1;
    const at::Tensor indices = at::randint(0, call.rows, {call.tokens}, at::kLong);
    const at::Tensor gradient = random_tensor({call.tokens, call.width + 2}, number);
    const at::Tensor before = random_tensor({call.rows, call.width}, out_number), result = before.clone();
    call.indices = indices.data_ptr<int64_t>();
    call.gradient = gradient.data_ptr();
    call.gradient_stride = call.width + 2;
    call.result = result.data_ptr();
    run(call, all[static_cast<size_t>(round) % all.size()], static_cast<int>(random.between(1, 3)));

    at::Tensor expected = call.accumulate ? before.to(at::kFloat) : at::zeros({call.rows, call.width});
    at::Tensor sums = at::zeros({call.rows, call.width});  // f32 in token order, so that equal means equal
    for (int64_t i = 0; i < call.tokens; ++i) {
      const int64_t row = indices[i].item<int64_t>();
      if (row != call.padding_row) sums[row] += gradient[i].slice(0, 0, call.width).to(at::kFloat);
    }
    expected = (sums + expected).to(aten_type(out_number));
    ASSERT_TRUE(at::equal(result, expected)) << "round " << round;
  }
}

TEST(EmbeddingGradient, AnIndexThatIsNoRowIsNamed) {
  const at::Tensor indices = at::full({2}, 5, at::kLong), gradient = at::ones({2, 3}), result = at::zeros({5, 3});
  EmbeddingGradient call;
  call.tokens = 2;
  call.rows = 5;
  call.width = 3;
  call.indices = indices.data_ptr<int64_t>();
  call.gradient = gradient.data_ptr();
  call.gradient_stride = 3;
  call.result = result.data_ptr();
  EXPECT_THROW(run(call, {}, 1), UserError);
}

}  // namespace
}  // namespace stepc::blocked
