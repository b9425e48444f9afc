#include "engine/compare/sketch.h"

#include <algorithm>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "engine/compare/value_distance.h"

namespace stepc {
namespace {

TEST(Sketch, TellsSizeAndDistanceOfLargeTensors) {
  at::manual_seed(7);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor a = at::randn({300, 700}).to(dtype);
    const at::Tensor b = (a.to(at::kFloat) + 0.1 * at::randn({300, 700})).to(dtype);
    const ValueDistance whole = value_distance(a, b);
    const ValueDistance told = value_distance(Sketch(a).values(), Sketch(b).values());
    EXPECT_NEAR(told.rms, whole.rms, 0.1 * whole.rms);
    EXPECT_NEAR(told.apart, whole.apart, 0.1 * whole.apart);
    EXPECT_EQ(value_distance(Sketch(a).values(), Sketch(a.clone()).values()).apart, 0);
  }
}

TEST(Sketch, OfChunksIsThatOfTheWhole) {
  for (const int64_t count : {100, 1024, 5000, 300000}) {
    const at::Tensor whole = at::randn({count}).to(at::kBFloat16);
    Sketch sketch;
    for (int64_t first = 0; first < count; first += 2048)
      sketch.add(whole.narrow(0, first, std::min<int64_t>(2048, count - first)), first, count);
    EXPECT_TRUE(sketch.values().equal(Sketch(whole).values())) << count;
  }
}

TEST(Sketch, FindsOneWrongElementAmongMany) {
  const at::Tensor a = at::ones({1000, 1000});
  const at::Tensor b = a.clone();
  b[400][3] = 51;
  const double told = value_distance(Sketch(a).values(), Sketch(b).values()).apart;
  EXPECT_NEAR(told, value_distance(a, b).apart, 1e-9);
}

TEST(Sketch, SmallTensorsAreKept) {
  const at::Tensor a = at::randn({5, 7});
  EXPECT_TRUE(Sketch(a.t()).values().equal(a.t().flatten().to(at::kDouble)));
  EXPECT_FALSE(Sketch(at::Tensor()).values().defined());
}

TEST(Sketch, WhatIsNoFloatingPointDiffersByABit) {
  const at::Tensor a = at::arange(10000);
  const at::Tensor b = a.clone();
  EXPECT_TRUE(Sketch(a).values().equal(Sketch(b).values()));
  b[9999] += 1;
  EXPECT_FALSE(Sketch(a).values().equal(Sketch(b).values()));
}

TEST(Sketch, NotFiniteIsNotFinite) {
  const at::Tensor a = at::ones({100, 100});
  const at::Tensor b = a.clone();
  b[0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(value_distance(Sketch(a).values(), Sketch(b).values()).finite_alike);
  EXPECT_TRUE(value_distance(Sketch(b).values(), Sketch(b).values()).finite_alike);
}

TEST(Sketch, AnyNumberOfThreadsMakesTheSame) {
  const at::Tensor a = at::randn({1000, 77});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = Sketch(a).values();
  at::set_num_threads(threads);
  EXPECT_TRUE(Sketch(a).values().equal(alone));
}

}  // namespace
}  // namespace stepc
