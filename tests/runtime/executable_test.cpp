#include "runtime/executable.h"

#include <thread>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "base/check.h"
#include "runtime/arena.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// y = relu(x @ w^T); w is scaled in place; returns sum(y)
constexpr std::string_view kStep = R"(stepc.trace 1
storage s0 bytes=64 external
storage s1 bytes=64 external
storage s2 bytes=64
storage s3 bytes=64
storage s4 bytes=4 escapes
%0: f32[4, 4] @s0 = parameter "w"
%1: f32[4, 4] @s1 = batch "0"
call 0 %2: f32[4, 4](1, 4) @s0 = aten::t(%0) | forward "layer"
call 1 %3: f32[4, 4] @s2 = aten::mm(%1, %2) | forward "layer"
  alloc 64 @s2 [1, 6)
call 2 %4: f32[4, 4] @s3 = aten::relu(%3) | forward "layer"
  alloc 64 @s3 [4, 9)
call 3 %5: f32[] @s4 = aten::sum(%4, dtype:none) | forward ""
  alloc 4 @s4 [7, 12) kept
call 4 %0 = aten::mul_.Tensor(%0, number(0.5)) writes %0 | update "layer"
  alloc 4 [11, 12)
return %5
ticks 12
)";

Trace step_trace() {
  std::string text(kStep);
  text.replace(text.find("dtype:none"), 10, "none");
  return parse_trace(text);
}

std::unique_ptr<Executable> build(const Trace& trace) {
  verify(trace);
  return std::make_unique<Executable>(trace, schedule_trace(trace, at::get_num_threads()));
}

TEST(Executable, RunsATraceWrittenAsText) {
  const auto executable = build(step_trace());
  EXPECT_EQ(executable->schedule().instructions.size(), 4U) << "the view does not run";
  at::Tensor w = torch::randn({4, 4});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = torch::randn({4, 4});
    const at::Tensor expected = torch::relu(x.mm(w.t())).sum();
    const at::Tensor scaled = w * 0.5;
    ASSERT_EQ(executable->why_not({w, x}), "");
    const auto version = w._version();
    const StepResult result = executable->run({{w, x}, {}, {}});
    EXPECT_TRUE(torch::equal(result.outputs[0], expected));
    EXPECT_TRUE(torch::equal(w, scaled));
    EXPECT_GT(w._version(), version) << "autograd must see in-place writes";
    EXPECT_EQ(result.memory.served, 3U) << "two results, and the number as float32 inside mul_";
    EXPECT_EQ(result.memory.kept, 1U);
    EXPECT_EQ(result.memory.unplanned, 0U);
  }
}

TEST(Executable, FollowsAParameterThatGetsOtherMemory) {
  const auto executable = build(step_trace());
  const at::Tensor x = torch::ones({4, 4});
  for (int i = 1; i <= 3; ++i) {
    const at::Tensor w = torch::full({4, 4}, static_cast<float>(i));
    EXPECT_EQ(executable->run({{w, x}, {}, {}}).outputs[0].item<float>(), 64.0F * static_cast<float>(i));
  }
}

TEST(Executable, FollowsABatchThatIsASliceOfSomethingLarger) {
  const auto executable = build(step_trace());
  const at::Tensor w = torch::eye(4);
  const at::Tensor data = torch::arange(64).reshape({16, 4}).to(at::kFloat);
  const at::Tensor x = data.slice(0, 4, 8);
  ASSERT_EQ(executable->why_not({w, x}), "");
  EXPECT_EQ(executable->run({{w, x}, {}, {}}).outputs[0].item<float>(), x.sum().item<float>());
}

TEST(Executable, RunsOnAnyThread) {
  const auto executable = build(step_trace());
  const at::Tensor x = torch::ones({4, 4});
  float here = 0;
  float there = 0;
  here = executable->run({{torch::ones({4, 4}), x}, {}, {}}).outputs[0].item<float>();
  std::thread([&] { there = executable->run({{torch::ones({4, 4}), x}, {}, {}}).outputs[0].item<float>(); }).join();
  EXPECT_EQ(here, there);
}

TEST(Executable, SaysWhyTensorsDoNotFit) {
  const auto executable = build(step_trace());
  const at::Tensor w = torch::ones({4, 4});
  EXPECT_EQ(executable->why_not({w, torch::ones({4, 5})}), "batch '0' was f32[4, 4] and is now Float[4, 5]");
  EXPECT_EQ(executable->why_not({w, at::Tensor()}), "batch '0' was f32[4, 4] and is now nothing");
  EXPECT_EQ(executable->why_not({w.to(at::kDouble), w}), "parameter 'w' was f32[4, 4] and is now Double[4, 4]");
  EXPECT_EQ(executable->why_not({w, w}), "two of the step's tensors now share memory");
  EXPECT_EQ(executable->why_not({w.t(), w.clone()}), "parameter 'w' was f32[4, 4] and is now Float[4, 4]");
}

TEST(Executable, UnknownOperatorsAreRefused) {
  Trace trace = step_trace();
  trace.calls[1].op = "aten::no_such_op";
  EXPECT_USER_ERROR(build(trace), "the trace calls aten::no_such_op, which this LibTorch does not have");
  trace.calls[1].op = "aten::addmm";
  EXPECT_USER_ERROR(build(trace), "the trace calls aten::addmm with 2 arguments, this LibTorch's takes 5");
}

TEST(Executable, AnAllocationThatIsNotAsPlannedIsCountedAndStaysRight) {
  // The plan expects a workspace that the kernel never asks for: from there on nothing fits.
  std::string text(to_text(step_trace()));
  text.insert(text.find("  alloc 64 @s2"), "  alloc 12345 [1, 2)\n");
  const auto executable = build(parse_trace(text));
  const at::Tensor x = torch::randn({4, 4});
  const at::Tensor w = torch::randn({4, 4});
  const at::Tensor expected = torch::relu(x.mm(w.t())).sum();
  const StepResult result = executable->run({{w, x}, {}, {}});
  EXPECT_TRUE(torch::equal(result.outputs[0], expected));
  EXPECT_EQ(result.memory.unplanned, 1U);
  EXPECT_EQ(result.memory.unplanned_bytes, 64U);
}

TEST(Arena, GrowsInPlace) {
  const ArenaLease lease;
  Arena& arena = *lease;
  std::byte* base = arena.base();
  arena.grow_to(1000);
  base[999] = std::byte{7};
  arena.grow_to(64 << 20);
  EXPECT_EQ(arena.base(), base);
  EXPECT_EQ(base[999], std::byte{7});
  base[(64 << 20) - 1] = std::byte{1};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % (2 << 20), 0U);
  EXPECT_USER_ERROR(arena.grow_to(uint64_t{1} << 60), "of address space could be reserved");
}

TEST(Arena, GoesToTheNextThreadThatAsks) {
  const Arena* first = nullptr;
  const Arena* second = nullptr;
  std::thread([&] { first = &*ArenaLease(); }).join();
  std::thread([&] { second = &*ArenaLease(); }).join();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, &*ArenaLease());
}

}  // namespace
}  // namespace stepc
