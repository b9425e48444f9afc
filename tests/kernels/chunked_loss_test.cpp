// What stands between the matmuls of a loss on a GPU, beside the op's own meaning: of logits that a matrix of ones on
// the diagonal makes of themselves.
#include "kernels/chunked_loss.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "interp/evaluate.h"
#include "interp/interpret.h"
#include "ops/op_def.h"
#include "tests/interp/random_inputs.h"

namespace stepc {
namespace {

Array ones_on_the_diagonal(DType dtype, int64_t size) {
  Array out({dtype, {size, size}});
  for (int64_t i = 0; i < size; ++i) out.set(i * size + i, 1.0);
  return out;
}

TEST(ChunkedLoss, RowsAreWhatTheOpMeans) {
  constexpr int64_t kTokens = 9, kClasses = 7;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16})
    for (const int64_t ignored : {-100, 3})
      for (size_t operands = 3; operands <= 5; ++operands) {
        SCOPED_TRACE(str("{} {} operands, {} ignored", name_of(dtype), operands, ignored));
        const Attrs attrs =
            complete_attrs(op_def("linear_cross_entropy"),
                           {{"ignore_index", ignored}, {"gradient_dtype", DType::kF64}, {"frozen", true}});
        const Graph rows = loss_rows(attrs, dtype, kTokens, kClasses, operands);
        verify_ops(rows);
        std::vector<Array> inputs = test::random_inputs(rows, 1, kClasses);
        for (int64_t i = 0; i < kTokens * kClasses; ++i) inputs[0].set(i, 20 * inputs[0].real(i));
        if (ignored < 0) inputs[1].set(2, ignored);
        const std::vector<Array> have = interpret(rows, inputs);
        inputs.insert(inputs.begin() + 1, ones_on_the_diagonal(dtype, kClasses));
        const std::vector<Array> want = evaluate(op_def("linear_cross_entropy"), inputs, attrs);
        ASSERT_EQ(have.size(), operands == 3 ? 2U : 3U);
        const double error = dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 1e-5 : 1e-2;
        for (size_t r = 0; r < have.size(); ++r) {
          EXPECT_EQ(have[r].type, want[r].type) << r;
          EXPECT_LE(largest_error(have[r], want[r]), r < 2 ? std::min(error, 1e-5) : error) << r;
        }
      }
}

}  // namespace
}  // namespace stepc
