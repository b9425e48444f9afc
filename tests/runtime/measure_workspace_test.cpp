// What an ATen call takes from the allocator beside its results, of calls that take a known amount.
#include "runtime/measure_workspace.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "aten/cpu_hook.h"
#include "ops/op_def.h"
#include "runtime/arena.h"

namespace stepc {
namespace {

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

// At most 128 + 256 bytes at once beside a result like x; on a worker 64.
at::Tensor work(const at::Tensor& x) {
  { const at::Tensor first = bytes(100), second = bytes(256); }
  const at::Tensor third = bytes(128);
  at::Tensor result = at::empty_like(x);
  at::parallel_for(0, 2, 1, [](int64_t, int64_t) { bytes(64); });
  return result.fill_(7);
}
// Its second tensor of that size is the result, when the first is gone.
at::Tensor copies(const at::Tensor& x) {
  { const at::Tensor first = bytes(120); }
  return at::empty_like(x).fill_(7);
}
at::Tensor refuses_zeros(const at::Tensor& x) {
  TORCH_CHECK(x.sum().item<float>() != 0, "zeros");
  return x.clone();
}
at::Tensor draws(const at::Tensor& x) { return at::rand_like(x); }

TORCH_LIBRARY(stepc_workspace_test, m) {
  m.def("work(Tensor x) -> Tensor", work);
  m.def("copies(Tensor x) -> Tensor", copies);
  m.def("refuses_zeros(Tensor x) -> Tensor", refuses_zeros);
  m.def("draws(Tensor x) -> Tensor", draws);
}

UnknownWorkspace call_of(const std::string& op) {
  install_cpu_hook();
  const TensorType type{DType::kF32, {30}};
  Node node;
  node.op = "stepc_workspace_test::" + op;
  node.inputs.resize(1);
  node.aten.emplace();
  node.aten->args = {ValueId(0)};
  node.aten->results = {ValueId(0)};
  return unknown_workspace(node, {{type, {1}}}, {{type, {1}}}, 2);
}

TEST(MeasureWorkspace, IsTheMostThatACallHoldsAtOnceBesideItsResults) {
  const std::optional<Workspace> alone = measure_workspace(call_of("work"), 1);
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const std::optional<Workspace> two = measure_workspace(call_of("work"), 2);
  at::set_num_threads(before);
  ASSERT_TRUE(alone.has_value() && two.has_value());
  EXPECT_EQ(two->bytes, 128U + 256) << "the result, and what was given back before, do not count";
  EXPECT_EQ(two->worker_bytes, 64U);
  EXPECT_EQ(alone->bytes, 128U + 256);
  EXPECT_EQ(alone->worker_bytes, 0U);
}

TEST(MeasureWorkspace, ATemporaryTensorLiesWhereTheResultWillBe) {
  const std::optional<Workspace> workspace = measure_workspace(call_of("copies"), 1);
  ASSERT_TRUE(workspace.has_value());
  EXPECT_EQ(workspace->bytes, 0U);
}

TEST(MeasureWorkspace, OfACallThatRefusesZerosIsUnknown) {
  EXPECT_FALSE(measure_workspace(call_of("refuses_zeros"), 1).has_value());
  EXPECT_FALSE(measure_workspace(call_of("is_not_there"), 1).has_value());
}

// Also where the call ends early.
TEST(MeasureWorkspace, LeavesNoPagesOfItsArenaBehind) {
  constexpr uint64_t kPage = 4096;
  for (const char* op : {"work", "refuses_zeros"}) {
    measure_workspace(call_of(op), 1);
    const ArenaLease lease;
    const Arena& arena = *lease;
    std::vector<unsigned char> resident(arena.bytes() / kPage);
    ASSERT_FALSE(resident.empty());
    ASSERT_EQ(::mincore(arena.base(), arena.bytes(), resident.data()), 0);
    EXPECT_EQ(std::ranges::count_if(resident, [](unsigned char page) { return (page & 1) != 0; }), 0) << op;
  }
}

TEST(MeasureWorkspace, LeavesTheGeneratorAsItWas) {
  at::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(5);
  ASSERT_TRUE(measure_workspace(call_of("draws"), 1).has_value());
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

TEST(MeasureWorkspace, OfARowOfTheOpTable) {
  install_cpu_hook();
  const TensorType type{DType::kF32, {8, 8}};
  Node node;
  node.op = "exp";
  node.attrs = complete_attrs(op_def("exp"), {});
  node.inputs.resize(1);
  const std::optional<Workspace> exp =
      measure_workspace(unknown_workspace(node, {{type, {8, 1}}}, {{type, {8, 1}}}, 1), 1);
  EXPECT_EQ(exp, Workspace()) << "its result is all that it takes";
}

// Of a narrow weight's gradient one wide sum of everything, and little beside it.
TEST(MeasureWorkspace, OfALossWithManyClasses) {
  install_cpu_hook();
  constexpr int64_t kTokens = 512, kWidth = 512, kClasses = 12000;
  const auto laid_out = [](DType dtype, Shape shape) {
    return TensorLayout{{dtype, shape}, contiguous_strides(shape)};
  };
  const std::vector<TensorLayout> inputs = {laid_out(DType::kBF16, {kTokens, kWidth}),
                                            laid_out(DType::kBF16, {kClasses, kWidth}),
                                            laid_out(DType::kI64, {kTokens}), laid_out(DType::kF32, {kTokens})};
  Node node;
  node.op = "linear_cross_entropy";
  node.attrs = complete_attrs(op_def("linear_cross_entropy"), {{"gradient_dtype", DType::kBF16}});
  node.inputs.resize(inputs.size());
  const TensorLayout row = laid_out(DType::kF32, {kTokens});
  const std::optional<Workspace> loss =
      measure_workspace(unknown_workspace(node, inputs, {row, row, inputs[0], inputs[1]}, 1), 1);
  ASSERT_TRUE(loss.has_value());
  const uint64_t sum = uint64_t{kClasses} * kWidth * sizeof(float);
  const uint64_t gradients = uint64_t{256} * kClasses * 2;  // of the logits of as many rows
  const uint64_t logits = uint64_t{64} * kClasses * sizeof(float);
  EXPECT_LE(loss->bytes, sum + gradients + 5 * logits);
}

// A result that ATen lays otherwise than was planned is copied aside and to its place.
TEST(MeasureWorkspace, OfAResultThatLiesOtherwise) {
  install_cpu_hook();
  const TensorType type{DType::kF32, {8, 16}};
  Node node;
  node.op = "exp";
  node.attrs = complete_attrs(op_def("exp"), {});
  node.inputs.resize(1);
  const UnknownWorkspace call = unknown_workspace(node, {{type, {16, 1}}}, {{type, {1, 8}}}, 1);
  EXPECT_EQ(measure_workspace(call, 1), (Workspace{8 * 16 * 4, 0}));
  EXPECT_NE(call.key, unknown_workspace(node, {{type, {16, 1}}}, {{type, {16, 1}}}, 1).key);
}

}  // namespace
}  // namespace stepc
