#include "cost/features.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(Features, AsText) {
  EXPECT_EQ(to_text(Features()), "none");
  EXPECT_EQ(to_text(Features{.bf16 = true, .f32 = true, .avx512 = true}), "bf16, f32, avx512");
  EXPECT_EQ(to_text(Features{.avx512 = true, .intel = true}), "avx512, intel");
}

TEST(Features, MatmulsNeedAvx512AndF32OnesAnotherCpuThanIntels) {
  EXPECT_EQ(matmul_rule(Features{.bf16 = true, .f32 = true, .avx512 = true}), (MatmulRule{true, true}));
  EXPECT_EQ(matmul_rule(Features{.bf16 = true, .f32 = true, .avx512 = true, .intel = true}), (MatmulRule{true, false}));
  EXPECT_EQ(matmul_rule(Features{.bf16 = true, .f32 = true}), MatmulRule());
  EXPECT_EQ(matmul_rule(Features{.avx512 = true}), MatmulRule());
}

}  // namespace
}  // namespace stepc
