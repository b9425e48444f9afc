#include "train/machine/device.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"

namespace stepc::train {
namespace {

const DeviceFacts kH100 = {.name = "NVIDIA H100 80GB HBM3", .compute_capability = 90};
const DeviceFacts kL4 = {.name = "NVIDIA L4", .compute_capability = 89};
const DeviceFacts kV100 = {.name = "Tesla V100-SXM2-16GB", .compute_capability = 70};

TEST(Device, IsByDefaultACardThatRunsAreProvenOn) {
  constexpr std::array<std::string_view, 2> kProven = {"NVIDIA H100", "Tesla V100"};
  EXPECT_EQ(default_device(std::nullopt, kProven), "cpu");
  EXPECT_EQ(default_device(kH100, kProven), "cuda");
  EXPECT_EQ(default_device(kL4, kProven), "cpu");
  EXPECT_EQ(default_device(kV100, kProven), "cpu") << "PyTorch has no kernels for it";
  EXPECT_EQ(default_device(DeviceFacts{.name = "NVIDIA GPU"}, kProven), "cpu") << "that says nothing of itself";
}

TEST(Device, AGpuThatIsLeftAloneIsOneLine) {
  EXPECT_EQ(unused_gpu(at::kCPU, std::nullopt), "");
  EXPECT_EQ(unused_gpu(at::Device("cuda:0"), kL4), "");
  EXPECT_EQ(unused_gpu(at::kCPU, kH100),
            "this machine has an NVIDIA H100 80GB HBM3: train.device = \"cuda\" trains on it");
  EXPECT_EQ(
      unused_gpu(at::kCPU, kL4),
      "this machine has an NVIDIA L4: train.device = \"cuda\" trains on it, and is no default before a run on such a "
      "card is in docs/gpu.md");
  EXPECT_EQ(
      unused_gpu(at::kCPU, kV100),
      "the GPU of this machine is not used: Tesla V100-SXM2-16GB (sm_70) is too old: PyTorch has kernels for sm_75 "
      "and newer");
}

// What is not there cannot be asked for; runs on a device are tests/parity/test_train_on_device.py's.
TEST(Device, Refuses) {
  EXPECT_USER_ERROR(use_device("train.device", "gpu"),
                    R"(train.device = "gpu" is no device; give "cpu", "cuda" or "cuda:1")");
  EXPECT_USER_ERROR(use_device("train.device", "meta"), "is no device");
  EXPECT_USER_ERROR(use_device("train.device", "xpu"), "this PyTorch is built without it");
  EXPECT_EQ(use_device("train.device", "cpu"), at::kCPU);
}

}  // namespace
}  // namespace stepc::train
