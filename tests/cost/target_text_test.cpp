#include <gtest/gtest.h>

#include "cost/target.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

TEST(TargetText, ReadsBackToTheSame) {
  const Target odd{.flops_per_second = 1.0 / 3 * 1e11,
                   .bytes_per_second = 1,
                   .narrow_flops_per_second = 1e18,
                   .features = {.bf16 = true, .avx512 = true, .intel = true},
                   .threads = 96};
  for (const Target& target : {Target(), odd}) EXPECT_EQ(parse_target(to_text(target)), target) << to_text(target);
  for (const FeatureName& one : kFeatureNames) {
    Target target;
    target.features.*one.there = true;
    EXPECT_EQ(parse_target(to_text(target)), target) << to_text(target);
  }
  EXPECT_EQ(to_text(Target{.features = {.f32 = true, .avx512 = true}, .threads = 2}),
            "threads = 2\nfeatures = [\"f32\", \"avx512\"]\nflops_per_second = 1000000000000\n"
            "narrow_flops_per_second = 1000000000000\nbytes_per_second = 40000000000\n");
}

TEST(TargetText, RatesHaveDefaultsThreadsAndFeaturesHaveNone) {
  EXPECT_EQ(parse_target("threads = 4\nfeatures = []  # plain loops\n"), Target{.threads = 4});
  EXPECT_EQ(parse_target("threads = 4\nfeatures = []\nflops_per_second = 2.5e11").flops_per_second, 2.5e11);
  EXPECT_USER_ERROR(parse_target(""), "target: threads is missing");
  EXPECT_USER_ERROR(parse_target("threads = 4"), "target: features is missing");
}

TEST(TargetText, WhatIsNotATargetIsRefusedWithLineAndKey) {
  const auto with = [](const std::string& line) { return parse_target("threads = 4\nfeatures = []\n" + line); };
  EXPECT_USER_ERROR(with("thread = 2"), "target, line 3: thread = 2: unknown key; did you mean threads?");
  EXPECT_USER_ERROR(with("cache = 2"), "target, line 3: cache = 2: unknown key; the keys are threads, features, flops");
  EXPECT_USER_ERROR(with("[threads_of]\na = 1"), "target, line 3: threads_of = ");
  for (const std::string bad : {"0", "-1.5", "nan", "inf", "1e19", "\"fast\"", "true", "[1e9]"}) {
    EXPECT_USER_ERROR(with("bytes_per_second = " + bad), "target, line 3: bytes_per_second = ");
  }
  EXPECT_USER_ERROR(with("threads = 8"), "target, line 3: not TOML: ");
  EXPECT_USER_ERROR(with("flops_per_second ="), "target, line 3: not TOML: ");
  for (const std::string bad : {"0", "-1", "4097", "2.0", "\"two\"", "99999999999999"}) {
    EXPECT_USER_ERROR(parse_target("threads = " + bad + "\nfeatures = []"), "target, line 1: threads = ");
  }
  EXPECT_USER_ERROR(parse_target("threads = 1\nfeatures = \"bf16\""),
                    "target, line 2: features = 'bf16': must be a list of bf16, f32, avx512, intel");
  EXPECT_USER_ERROR(parse_target("threads = 1\nfeatures = [\n  \"bf16\",\n  \"amx\"]"),
                    "target, line 4: features = 'amx': no such feature; there are bf16, f32, avx512, intel");
  EXPECT_USER_ERROR(parse_target("threads = 1\nfeatures = [3]"), "target, line 2: features = 3: no such feature");
}

}  // namespace
}  // namespace stepc
