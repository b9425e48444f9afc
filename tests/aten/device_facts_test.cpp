#include "aten/device_facts.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

TEST(DeviceFacts, ADriverIsMissingOrTooOld) {
  EXPECT_EQ(trouble_with(CudaVersions{.is_there = false, .wanted = 13000}),
            "no NVIDIA driver is on this machine (libcuda.so.1); install one");
  EXPECT_EQ(trouble_with(CudaVersions{.is_there = true, .version = 12040, .wanted = 13000}),
            "the NVIDIA driver runs CUDA up to 12.4, and this PyTorch is for CUDA 13.0; install a newer driver, or a "
            "PyTorch for CUDA 12");
  EXPECT_EQ(trouble_with(CudaVersions{.is_there = true, .version = 13000, .wanted = 13020}), "") << "of one series";
  EXPECT_EQ(trouble_with(CudaVersions{.is_there = true, .version = 14000, .wanted = 13000}), "");
}

TEST(DeviceFacts, ACardIsTooOld) {
  EXPECT_EQ(trouble_with(DeviceFacts{.name = "Tesla V100-SXM2-16GB", .compute_capability = 70}),
            "Tesla V100-SXM2-16GB (sm_70) is too old: PyTorch has kernels for sm_75 and newer");
  EXPECT_EQ(trouble_with(DeviceFacts{.name = "Tesla T4", .compute_capability = 75}), "");
  EXPECT_EQ(trouble_with(DeviceFacts{.name = "of another kind"}), "");
}

TEST(DeviceFacts, AName) {
  const c10::Device device("cuda:1");
  EXPECT_EQ(name_of(device, DeviceFacts{.name = "NVIDIA L4"}), "cuda:1 (NVIDIA L4)");
  EXPECT_EQ(name_of(device, std::nullopt), "cuda:1");
}

}  // namespace
}  // namespace stepc
