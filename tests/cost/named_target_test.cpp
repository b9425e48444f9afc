#include "cost/named_target.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

TEST(NamedTarget, EachCardReadsBackToTheSame) {
  EXPECT_EQ(target_names(),
            (std::vector<std::string>{"a100", "h100", "h100-96", "h200", "b200", "gb200", "a800", "h800"}));
  for (const std::string& name : target_names()) {
    const Target target = named_target(name);
    EXPECT_EQ(parse_target(to_text(target)), target) << to_text(target);
    EXPECT_EQ(target.rates.streams, (std::vector<StreamRate>{{1, target.bytes_per_second}}));
    EXPECT_GT(target.narrow_flops_per_second, target.flops_per_second);
  }
  EXPECT_EQ(named_target("H100-80"), named_target("h100"));
  EXPECT_EQ(named_target("h200-141").gpu->memory_bytes, 141'000'000'000);
}

TEST(NamedTarget, ACardIsFoundByWhatItsDriverSays) {
  EXPECT_EQ(target_of_card("NVIDIA H100 80GB HBM3", 85'520'809'984, 132), named_target("h100"));
  EXPECT_EQ(target_of_card("NVIDIA H100 80GB HBM3", 85'520'809'984, 132, true), named_target("h100", true));
  EXPECT_EQ(target_of_card("NVIDIA H200", 150'754'820'096, 132), named_target("h200"));
  EXPECT_EQ(target_of_card("NVIDIA A100-SXM4-80GB", 85'094'760'448, 108), named_target("a100"));
  EXPECT_EQ(target_of_card("NVIDIA A100-SXM4-40GB", 42'409'000'960, 108), std::nullopt);
  EXPECT_EQ(target_of_card("NVIDIA H100 PCIe", 85'029'158'912, 114), std::nullopt);
  EXPECT_EQ(target_of_card("NVIDIA H100 NVL", 100'000'000'000, 132), std::nullopt);
  EXPECT_EQ(target_of_card("NVIDIA GeForce RTX 4090", 25'000'000'000, 128), std::nullopt);
  EXPECT_EQ(target_of_card("", 0, 0), std::nullopt);
}

TEST(NamedTarget, RatesAreThoseOfTheirSources) {
  const Target h200 = named_target("h200");
  EXPECT_EQ(h200.features, Features{.sm = 90});
  EXPECT_NEAR(h200.bytes_per_second, 0.9 * 4.8e12, 1);
  EXPECT_NEAR(matmul_rate(h200.rates, KernelOwner::kLibrary, DType::kBF16, 4096, 4096, 1024), 677e12, 1e6);
  EXPECT_NEAR(attention_rate(h200.rates, KernelOwner::kLibrary, DType::kBF16, false, 2048, 64), 334e12, 1e6);
  EXPECT_EQ(named_target("h100").rates.matmuls, h200.rates.matmuls);
  // Without tensor cores. What a small product takes beside its arithmetic is as long as in bf16.
  EXPECT_LT(matmul_rate(h200.rates, KernelOwner::kLibrary, DType::kF32, 4096, 4096, 4096), 67e12);
  EXPECT_GT(matmul_rate(h200.rates, KernelOwner::kLibrary, DType::kF32, 4096, 4096, 4096), 50e12);
  const auto seconds = [](const Target& target, DType dtype) {
    return 2.0 * 256 * 512 * 256 / matmul_rate(target.rates, KernelOwner::kLibrary, dtype, 256, 512, 256);
  };
  EXPECT_LT(seconds(h200, DType::kF32), 1.3 * seconds(h200, DType::kBF16));
  EXPECT_LT(seconds(named_target("a100"), DType::kBF16), 1.1 * seconds(h200, DType::kBF16));
}

TEST(NamedTarget, MatmulsInTf32TakeHalfTheRateOfBf16) {
  const Target tf32 = named_target("h200", /*tf32=*/true);
  const double rate = matmul_rate(tf32.rates, KernelOwner::kLibrary, DType::kF32, 16384, 4096, 4096);
  EXPECT_NEAR(rate / matmul_rate(tf32.rates, KernelOwner::kLibrary, DType::kBF16, 16384, 4096, 4096), 0.5, 0.01);
  EXPECT_EQ(tf32.gpu->name, "NVIDIA H200 141GB, TF32 matmuls");
  EXPECT_EQ(tf32.rates.attentions, named_target("h200").rates.attentions);
  EXPECT_EQ(parse_target(to_text(tf32)), tf32);
}

TEST(NamedTarget, WhatIsNoTargetIsRefusedWithThoseThatThereAre) {
  EXPECT_USER_ERROR(
      named_target("h110"),
      "did you mean h100? there are a100, h100, h100-96, h200, b200, gb200, a800, h800, or give a Target file");
  EXPECT_USER_ERROR(named_target("tpu"), "there is no such target and no such file");
  EXPECT_USER_ERROR(named_target(""), "there is no such target");
  EXPECT_USER_ERROR(named_target("V100"), "torch has no kernels for a V100 any more; there are a100");
  EXPECT_USER_ERROR(named_target("v100-32"), "torch has no kernels for a V100");
}

TEST(NamedTarget, AFileWithoutAKeyIsRefusedByLineAndKey) {
  const TempDir directory;
  const std::string path = (directory.path() / "mine.toml").string();
  const std::string text = to_text(named_target("h100"));
  const auto read = [&](const std::string& changed) {
    write_file_synced(path, changed);
    return named_target(path);
  };
  EXPECT_EQ(read(text), named_target("h100"));
  for (const std::string key :
       {"name", "sm", "multiprocessors", "shared_bytes", "l2_bytes", "memory_bytes", "bytes_per_second",
        "flops_per_second", "kernel_seconds", "link_latency_seconds", "link_bytes_per_second"}) {
    const size_t begin = text.find(key + " = ");
    std::string without = text;
    without.erase(begin, text.find('\n', begin) + 1 - begin);
    EXPECT_USER_ERROR(read(without), path + ": target, line 1: a GPU: " + key + " is missing");
  }
  EXPECT_USER_ERROR(read(text.substr(0, text.find("[[attentions]]"))), "attentions is missing");
  EXPECT_USER_ERROR(read(text + "dtype = \"f32\"\n"), "not TOML");
  EXPECT_USER_ERROR(read("colour = \"green\"\n" + text), "target, line 1: colour = 'green': unknown key");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(text.find(from), from.size(), to);
    return read(changed);
  };
  EXPECT_USER_ERROR(with("device = \"cuda\"", "device = \"tpu\""), "device = 'tpu': must be one of cuda");
  EXPECT_USER_ERROR(with("sm = 90", "sm = 70"), "sm = 70: torch has no kernels for it; the oldest");
  EXPECT_USER_ERROR(with("sm = 90", "sm = 9000"), "sm = 9000: must be at most");
  EXPECT_USER_ERROR(with("columns = 512\n", ""), "matmuls: columns is missing");
  EXPECT_USER_ERROR(with("kernel_seconds = 1e-06", "kernel_seconds = 2"), "must be a number from");
  EXPECT_EQ(read("threads = 4\nfeatures = []\n"), Target{.threads = 4}) << "a CPU's file";
}

}  // namespace
}  // namespace stepc
