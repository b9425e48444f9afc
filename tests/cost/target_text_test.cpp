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
                   .threads = 96,
                   .cpu = "znver4",
                   .rates = {.calls = {{"aten::add.Tensor", DType::kF32, 1e-6, 1e10}, {"exp", DType::kBF16, 1e-7, 1}}}};
  for (const Target& target : {Target(), odd}) EXPECT_EQ(parse_target(to_text(target)), target) << to_text(target);
  for (const FeatureName& one : kFeatureNames) {
    Target target;
    target.features.*one.there = true;
    EXPECT_EQ(parse_target(to_text(target)), target) << to_text(target);
  }
  const std::string text = to_text(Target{.features = {.f32 = true, .avx512 = true}, .threads = 2});
  EXPECT_TRUE(
      text.starts_with("threads = 2\nfeatures = [\"f32\", \"avx512\"]\nflops_per_second = 1000000000000\n"
                       "narrow_flops_per_second = 1000000000000\nbytes_per_second = 40000000000\n\n[rates]\n"
                       "instruction_seconds = "))
      << text;
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
  EXPECT_USER_ERROR(with("cache = 2"),
                    "target, line 3: cache = 2: unknown key; the keys are threads, cpu, features, flops");
  EXPECT_USER_ERROR(with("[threads_of]\na = 1"), "target, line 3: threads_of = ");
  for (const std::string bad : {"0", "-1.5", "nan", "inf", "1e19", "\"fast\"", "true", "[1e9]"}) {
    EXPECT_USER_ERROR(with("bytes_per_second = " + bad), "target, line 3: bytes_per_second = ");
  }
  EXPECT_USER_ERROR(with("threads = 8"), "target, line 3: not TOML: ");
  EXPECT_USER_ERROR(with("flops_per_second ="), "target, line 3: not TOML: ");
  EXPECT_USER_ERROR(with("threads = \"\xC3\xA9\""), "target, line 3: a character that is not ASCII");
  for (const std::string bad : {"0", "-1", "4097", "2.0", "\"two\"", "99999999999999"}) {
    EXPECT_USER_ERROR(parse_target("threads = " + bad + "\nfeatures = []"), "target, line 1: threads = ");
  }
  EXPECT_USER_ERROR(parse_target("threads = 1\nfeatures = \"bf16\""),
                    "target, line 2: features = 'bf16': must be a list of bf16, f32, avx512, intel");
  EXPECT_USER_ERROR(parse_target("threads = 1\nfeatures = [\n  \"bf16\",\n  \"amx\"]"),
                    "target, line 4: features = 'amx': no such feature; there are bf16, f32, avx512, intel");
  EXPECT_USER_ERROR(parse_target("threads = 1\nfeatures = [3]"), "target, line 2: features = 3: no such feature");
}

TEST(TargetText, LinksBetweenRanksAreRates) {
  const std::string start = "threads = 4\nfeatures = []\n[rates]\n";
  const Target target = parse_target(start + "link_latency_seconds = 2e-6\nlink_bytes_per_second = 4e11\n");
  EXPECT_EQ(target.rates.link_latency_seconds, 2e-6);
  EXPECT_EQ(target.rates.link_bytes_per_second, 4e11);
  EXPECT_EQ(parse_target(to_text(target)), target);
  EXPECT_USER_ERROR(parse_target(start + "link_latency_seconds = 2\n"),
                    "target, line 4: link_latency_seconds = 2: must be a number from 1e-12 to 1");
  EXPECT_USER_ERROR(parse_target(start + "link_bytes_per_second = 0\n"),
                    "target, line 4: link_bytes_per_second = 0: must be a number from 1 to 1e+18");
  EXPECT_USER_ERROR(parse_target(start + "link_latency_second = 1e-5\n"), "did you mean link_latency_seconds?");
}

TEST(TargetText, TablesReplaceTheDefaults) {
  const std::string start = "threads = 4\nfeatures = []\n";
  const Target target = parse_target(start +
                                     "[rates]\nfork_seconds = 2e-6\n"
                                     "[[streams]]\nbytes = 1024\nbytes_per_second = 1e11\n"
                                     "[[streams]]\nbytes = 4096\nbytes_per_second = 1e10\n");
  EXPECT_EQ(target.rates.fork_seconds, 2e-6);
  EXPECT_EQ(target.rates.streams, (std::vector<StreamRate>{{1024, 1e11}, {4096, 1e10}}));
  EXPECT_EQ(target.rates.matmuls, Rates().matmuls);
}

TEST(TargetText, ProductsMayBeMadeManyInACall) {
  Target target{.threads = 4};
  target.rates.matmuls.push_back({KernelOwner::kLibrary, DType::kF32, 16, 16, 16, 1e9, 32});
  EXPECT_EQ(parse_target(to_text(target)), target);
  const std::string many =
      "threads = 4\nfeatures = []\n[[matmuls]]\nkernel = \"library\"\ndtype = \"f32\"\nrows = 1\ncolumns = 1\ninner = "
      "1\n"
      "flops_per_second = 1e9\nbatch = ";
  EXPECT_USER_ERROR(parse_target(many + "0"), "target, line 10: batch = 0: must be a whole number from 1 to ");
  EXPECT_USER_ERROR(parse_target(many + "8"), "target: matmuls has no row of kernel \"library\" in f32");
}

TEST(TargetText, ABadCallNamesLineAndKey) {
  const auto with = [](const std::string& text) { return parse_target("threads = 4\nfeatures = []\n" + text); };
  const std::string call = "[[calls]]\ndtype = \"f32\"\nseconds = 1e-6\nbytes_per_second = 1e9\nop = ";
  EXPECT_EQ(with(call + "\"exp\"").rates.calls, (std::vector<CallRate>{{"exp", DType::kF32, 1e-6, 1e9}}));
  for (const std::string bad : {"\"\"", "3", "\"a b\"", "\"x\\\"y\""})
    EXPECT_USER_ERROR(with(call + bad), "target, line 7: op = ");
  EXPECT_USER_ERROR(with(call + "\"exp\"\n" + call + "\"exp\""), "target, line 8: calls has exp in f32 twice");
  EXPECT_USER_ERROR(with("[[calls]]\nop = \"exp\"\ndtype = \"f32\"\nseconds = 2\nbytes_per_second = 1"),
                    "target, line 6: seconds = 2: must be a number from 1e-12 to 1");
  EXPECT_USER_ERROR(with("cpu = \"a\\nb\""), "target, line 3: cpu = '''a b''': must be the name of a CPU");
  EXPECT_USER_ERROR(with("cpu = 4"), "target, line 3: cpu = 4: must be the name of a CPU");
}

TEST(TargetText, ABadRateNamesLineAndKey) {
  const auto with = [](const std::string& text) { return parse_target("threads = 4\nfeatures = []\n" + text); };
  EXPECT_USER_ERROR(with("rates = 3"), "target, line 3: rates = 3: must be a table, [rates]");
  EXPECT_USER_ERROR(with("[rates]\nfork_second = 1.0"),
                    "target, line 4: fork_second = 1.0: unknown key; did you mean fork_seconds?");
  for (const std::string bad : {"0", "-1e-6", "2.0", "nan", "\"fast\""})
    EXPECT_USER_ERROR(with("[rates]\nfork_seconds = " + bad), "target, line 4: fork_seconds = ");
  EXPECT_USER_ERROR(with("[rates]\nlane_ops_per_second = 0"), "target, line 4: lane_ops_per_second = 0: must be");
  EXPECT_USER_ERROR(with("streams = []"), "target, line 3: streams = []: must be a list of tables, [[streams]]");
  EXPECT_USER_ERROR(with("[[streams]]\nbytes = 1024\n"), "target, line 3: streams: bytes_per_second is missing");
  EXPECT_USER_ERROR(with("[[streams]]\nbytes = 1.5\nbytes_per_second = 1e9"), "target, line 4: bytes = 1.5: must be a");
  EXPECT_USER_ERROR(
      with("[[streams]]\nbytes = 9\nbytes_per_second = 1e9\n[[streams]]\nbytes = 9\nbytes_per_second = 1e9"),
      "target, line 6: streams: bytes must grow from row to row");
  const std::string matmul = "[[matmuls]]\nkernel = \"blocked\"\ndtype = \"f32\"\nrows = 1\ncolumns = 1\ninner = 1\n";
  EXPECT_USER_ERROR(with(matmul + "flops_per_second = 1e9"), "target: matmuls has no row of kernel \"library\" in f32");
  EXPECT_USER_ERROR(with(matmul + "flops_per_second = 1e9\nflop = 3"), "target, line 10: flop = 3: unknown key");
  EXPECT_USER_ERROR(with("[[matmuls]]\nkernel = \"mine\""),
                    "target, line 4: kernel = 'mine': must be one of blocked, library");
  EXPECT_USER_ERROR(with("[[convolutions]]\ndtype = \"f32\"\nkind = \"dense\"\npass = \"forward\"\nchannels = 1\n"
                         "pixels = 1\ninner = 1\nflops_per_second = 1"),
                    "target: convolutions has no forward depthwise row in f32");
}

}  // namespace
}  // namespace stepc
