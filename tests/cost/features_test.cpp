#include "cost/features.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(Features, AsText) {
  EXPECT_EQ(to_text(Features()), "none");
  EXPECT_EQ(to_text(Features{.bf16 = true, .f32 = true, .avx512 = true}), "bf16, f32, avx512");
  EXPECT_EQ(to_text(Features{.avx512 = true, .intel = true}), "avx512, intel");
}

TEST(Features, ProductsNeedAvx512AndF32OnesAnotherCpuThanIntels) {
  EXPECT_EQ(product_rule(Features{.bf16 = true, .f32 = true, .avx512 = true}), (ProductRule{true, true}));
  EXPECT_EQ(product_rule(Features{.bf16 = true, .f32 = true, .avx512 = true, .intel = true}),
            (ProductRule{true, false}));
  EXPECT_EQ(product_rule(Features{.bf16 = true, .f32 = true}), ProductRule());
  EXPECT_EQ(product_rule(Features{.avx512 = true}), ProductRule());
}

}  // namespace
}  // namespace stepc
