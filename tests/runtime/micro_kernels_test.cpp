#include "runtime/micro_kernels.h"

#include <gtest/gtest.h>

#include "tests/runtime/pretended_kernels.h"

namespace stepc {
namespace {

TEST(MicroKernels, TheProbeIsRepeatableAndHasThePool) {
  const blocked::MicroKernels first = probe_micro_kernels();
  EXPECT_EQ(first, probe_micro_kernels());
  EXPECT_NE(first.parallel, nullptr);
  EXPECT_EQ(first.release != nullptr, first.bf16 != nullptr);
  std::printf("[ machine  ] %s\n", to_text(features_of(first)).c_str());
}

TEST(MicroKernels, FeaturesSayWhatIsThere) {
  EXPECT_EQ(features_of({}), Features());
  for (const FeatureName& one : kFeatureNames) {
    Features features;
    features.*one.there = true;
    EXPECT_EQ(features_of(pretended(features)), features) << one.name;
  }
}

}  // namespace
}  // namespace stepc
