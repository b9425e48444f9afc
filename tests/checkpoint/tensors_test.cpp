#include "checkpoint/tensors.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

TEST(Tensors, EveryDtypeRoundTrips) {
  const TempDir dir;
  NamedTensors saved;
  for (int i = 0; i <= static_cast<int>(DType::kF8E5M2); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(from_scalar_type(to_scalar_type(dtype)), dtype);
    if (dtype == DType::kC128) continue;  // not in the format
    const at::Tensor bytes = at::randint(0, dtype == DType::kBool ? 2 : 256, {4 * size_of(dtype)}, at::kByte);
    saved.emplace_back(std::string(name_of(dtype)), bytes.view(to_scalar_type(dtype)).view({2, 2}));
  }
  save_tensors(dir / "a.safetensors", saved, {{"k", "v"}});
  const NamedTensors loaded = load_tensors(dir / "a.safetensors");
  ASSERT_EQ(loaded.size(), saved.size());
  for (const auto& [name, tensor] : loaded) {
    const auto same = [&name = name](const auto& pair) { return pair.first == name; };
    const at::Tensor& expected = std::find_if(saved.begin(), saved.end(), same)->second;
    EXPECT_EQ(tensor.scalar_type(), expected.scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor.view(at::kByte), expected.view(at::kByte))) << name;
  }
}

TEST(Tensors, AnyLayoutIsSavedByValue) {
  const TempDir dir;
  const at::Tensor base = at::rand({4, 6});
  const at::Tensor complex = at::view_as_complex(at::rand({3, 2}));
  const std::map<std::string, at::Tensor> values = {{"conj", complex.conj()},
                                                    {"expanded", at::ones({1}).expand({5})},
                                                    {"grad", at::rand({2}).requires_grad_()},
                                                    {"negative", at::imag(complex.conj())},
                                                    {"scalar", at::scalar_tensor(2.5)},
                                                    {"slice", base.slice(1, 1, 6, 2)},
                                                    {"transposed", base.t()}};
  save_tensors(dir / "a", NamedTensors(values.begin(), values.end()));
  const NamedTensors loaded = load_tensors(dir / "a");
  ASSERT_EQ(loaded.size(), values.size());
  for (const auto& [name, tensor] : loaded) {
    EXPECT_TRUE(tensor.is_contiguous()) << name;
    EXPECT_FALSE(tensor.requires_grad()) << name;
    EXPECT_EQ(tensor.sizes(), values.at(name).sizes()) << name;
    EXPECT_TRUE(at::equal(tensor, values.at(name).detach())) << name;
  }
}

TEST(Tensors, LoadedTensorsOutliveTheFile) {
  const TempDir dir;
  save_tensors(dir / "a", {{"a", at::arange(1000)}});
  const NamedTensors loaded = load_tensors(dir / "a");
  std::filesystem::remove(dir / "a");
  EXPECT_TRUE(at::equal(loaded[0].second, at::arange(1000)));
}

TEST(Tensors, RefusesTypesThatTheFormatLacks) {
  const TempDir dir;
  EXPECT_USER_ERROR(save_tensors(dir / "a", {{"x", at::zeros({1}, at::kUInt16)}}), "dtype UInt16 cannot be saved");
  EXPECT_USER_ERROR(save_tensors(dir / "a", {{"x", at::zeros({1}, at::kComplexDouble)}}), "has no dtype c128");
}

}  // namespace
}  // namespace stepc
