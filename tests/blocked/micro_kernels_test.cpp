#include "blocked/micro_kernels.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "blocked/row_kernels.h"

namespace stepc::blocked {
namespace {

template <class T>
void right(const BlockSize& size, const T* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
           bool accumulate) {
  generic_rows().of<T>().multiply(size.rows, size.columns, size.depth, a, lda, b, ldb, c, ldc, accumulate);
}
// Wrong in one number, and only where it adds to what is there.
template <class T>
void wrong(const BlockSize& size, const T* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
           bool accumulate) {
  right(size, a, lda, b, ldb, c, ldc, accumulate);
  if (accumulate) c[(size.rows - 1) * ldc + size.columns - 1] += 1;
}
template <class T>
void missing(const BlockSize&, const T*, int64_t, const T*, int64_t, float*, int64_t, bool) {
  throw std::runtime_error("not on this machine");
}
int releases = 0;
void release() { ++releases; }

TEST(MicroKernels, RightOnesStay) {
  const MicroKernels kernels{.bf16 = right<Bf16>, .f32 = right<float>, .release = release, .avx512 = true};
  releases = 0;
  EXPECT_EQ(without_wrong_ones(kernels), kernels);
  EXPECT_EQ(releases, 1);
  EXPECT_EQ(without_wrong_ones({}), MicroKernels());
}

TEST(MicroKernels, WhatIsWrongOrThrowsGoes) {
  const MicroKernels f32_alone{.f32 = right<float>, .intel = true};
  EXPECT_EQ(without_wrong_ones({.bf16 = wrong<Bf16>, .f32 = right<float>, .release = release, .intel = true}),
            f32_alone);
  EXPECT_EQ(without_wrong_ones({.bf16 = missing<Bf16>, .f32 = right<float>, .release = release, .intel = true}),
            f32_alone);
  const MicroKernels bf16_alone{.bf16 = right<Bf16>, .release = release};
  EXPECT_EQ(without_wrong_ones({.bf16 = right<Bf16>, .f32 = wrong<float>, .release = release}), bf16_alone);
  EXPECT_EQ(without_wrong_ones({.bf16 = right<Bf16>, .f32 = missing<float>, .release = release}), bf16_alone);
}

}  // namespace
}  // namespace stepc::blocked
