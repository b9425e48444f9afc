#include "aten/virtual_memory.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace stepc {
namespace {

TEST(VirtualMemory, LooksLikeACpuTensor) {
  const at::Tensor tensor = virtual_tensor({1 << 20, 1 << 20, 4}, {1 << 22, 4, 1}, at::kFloat);  // 16 TiB
  EXPECT_TRUE(is_virtual(tensor));
  EXPECT_TRUE(tensor.is_cpu());
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(tensor.storage().nbytes(), size_t{1} << 44);
  EXPECT_FALSE(is_virtual(at::ones(3)));
  EXPECT_FALSE(is_virtual(at::Tensor()));
  const at::Tensor view = tensor.select(0, 7).t();
  EXPECT_TRUE(is_virtual(view));
  EXPECT_TRUE(view.is_alias_of(tensor));
  EXPECT_EQ(view.storage_offset(), int64_t{7} << 22);
}

TEST(VirtualMemory, ReadsAndWritesFailInsteadOfAnswering) {
  const at::Tensor tensor = virtual_tensor({2, 3}, {3, 1}, at::kFloat);
  const auto fails = [](const std::function<void()>& access) {
    try {
      access();
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("this tensor has no values") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(fails([&] { tensor.data_ptr(); }));
  EXPECT_TRUE(fails([&] { tensor.const_data_ptr<float>(); }));
  EXPECT_TRUE(fails([&] { tensor + 1; }));
  EXPECT_TRUE(fails([&] { tensor.zero_(); }));
  EXPECT_TRUE(fails([&] { tensor.sum().item(); }));
}

TEST(VirtualMemory, MaterialisingReachesEveryAlias) {
  const at::Tensor tensor = virtual_tensor({4, 6}, {6, 1}, at::kFloat);
  const at::Tensor column = tensor.select(1, 2);
  materialise(column);
  EXPECT_FALSE(is_virtual(tensor));
  tensor.copy_(at::arange(24).view({4, 6}));
  EXPECT_TRUE(at::equal(column, at::tensor({2.F, 8.F, 14.F, 20.F})));
  tensor.resize_({100, 100}).zero_();
  materialise(tensor);  // not virtual any more: nothing happens
  EXPECT_EQ(tensor.sum().item<float>(), 0);
}

TEST(VirtualMemory, IsGivenBackAndTakenAgain) {
  const at::Tensor tensor = at::ones({4, 3}), view = tensor.select(0, 1);
  dematerialise(tensor, "it lies elsewhere");
  EXPECT_TRUE(is_virtual(tensor) && is_virtual(view));
  EXPECT_EQ(view.sizes(), at::IntArrayRef({3}));
  try {
    tensor.data_ptr();
    ADD_FAILURE() << "it can be read";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("it lies elsewhere"), std::string::npos) << error.what();
  }
  materialise(tensor);
  tensor.fill_(2);
  EXPECT_EQ(view.sum().item<float>(), 6);
}

TEST(VirtualMemory, TooLittleMemoryIsOneLine) {
  const at::Tensor tensor = virtual_tensor({int64_t{1} << 58}, {1}, at::kFloat);
  EXPECT_ANY_THROW(materialise(tensor));
  EXPECT_TRUE(is_virtual(tensor));
}

}  // namespace
}  // namespace stepc
