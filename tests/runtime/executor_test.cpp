#include "runtime/executor.h"

#include <thread>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "base/check.h"
#include "comm/ranks.h"
#include "schedule/from_trace.h"
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

std::unique_ptr<Executor> build(const Trace& trace) {
  verify(trace);
  Schedule schedule = schedule_trace(trace, {}, at::get_num_threads());
  verify(schedule);
  return std::make_unique<Executor>(std::move(schedule), nullptr);
}

constexpr const char* kGathers = R"(stepc.schedule 1
features none
threads 1
mesh dp_shard=2
arena 0
live bound 0
layout "best_fit"
numbers 0
buffer b0: input 64 of 0
buffer b1: own 128
operand %0: f32[4, 4] in b0
operand %1: f32[2, 4, 4] in b1
input 0: parameter "w" %0 part of <8/dp_shard, 4>
i0: collective all_gather (%0) -> (%1) {axes=[0], ranks=2} | forward ""
output return %1
)";

TEST(Executor, OneRanksStepWantsItsRanks) {
  const Schedule schedule = parse_schedule(kGathers);
  verify(schedule);
  EXPECT_USER_ERROR(Executor(schedule, nullptr),
                    "the step is one rank's of the mesh dp_shard=2, and this process is the only one; run it on 2");
  EXPECT_USER_ERROR(Executor(schedule, nullptr, Ranks::threads(3)[0]),
                    "the step is one rank's of the mesh dp_shard=2, and there are 3 ranks");
}

TEST(Executor, AGpusScheduleDoesNotRunOnTheCpu) {
  const Schedule schedule = parse_schedule(
      "stepc.schedule 1\ndevice cuda sm_90\nthreads 1\narena 0\nlive bound 0\nlayout \"best_fit\"\nnumbers 0\n");
  EXPECT_USER_ERROR(Executor(schedule, nullptr),
                    "the Schedule is planned for cuda sm_90 and cannot run on the CPU; plan it without a target");
}

TEST(Executor, RefusesMemoryThatIsNotThere) {
  for (const auto& [device, why] :
       {std::pair("nothing:0", "PyTorch knows no such device"), std::pair("meta", "stepc has no plans for meta")}) {
    Schedule schedule;
    schedule.device = device;
    const std::string message = str("the Schedule works in memory of '{}', and {}", device, why);
    EXPECT_USER_ERROR(Executor(schedule, nullptr), message);
  }
}

TEST(Executor, RanksRunTheirStepsTogether) {
  const Schedule schedule = parse_schedule(kGathers);
  const at::Tensor whole = at::arange(32).view({8, 4}).to(at::kFloat);
  std::vector<at::Tensor> gathered(2);
  std::vector<std::thread> threads;
  for (const auto& ranks : Ranks::threads(2))
    threads.emplace_back([&, ranks] {
      Executor executor(schedule, nullptr, ranks);
      for (int i = 0; i < 3; ++i)
        gathered[static_cast<size_t>(ranks->rank())] =
            executor.run({.tensors = {whole.chunk(2)[ranks->rank()].clone()}}).outputs.at(0);
    });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& one : gathered) EXPECT_TRUE(one.view({8, 4}).equal(whole));
}

TEST(Executor, RunsATraceWrittenAsText) {
  const auto executor = build(step_trace());
  EXPECT_EQ(executor->schedule().instructions.size(), 4U) << "the view does not run";
  at::Tensor w = torch::randn({4, 4});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = torch::randn({4, 4});
    const at::Tensor expected = torch::relu(x.mm(w.t())).sum();
    const at::Tensor scaled = w * 0.5;
    ASSERT_EQ(executor->why_not({w, x}), "");
    const auto version = w._version();
    const StepResult result = executor->run({{w, x}, {}, {}});
    EXPECT_TRUE(torch::equal(result.outputs[0], expected));
    EXPECT_TRUE(torch::equal(w, scaled));
    EXPECT_GT(w._version(), version) << "autograd must see in-place writes";
    EXPECT_EQ(result.memory.served, 3U) << "two results, and the number as float32 inside mul_";
    EXPECT_EQ(result.memory.kept, 1U);
    EXPECT_EQ(result.memory.unplanned, 0U);
  }
}

TEST(Executor, FollowsAParameterThatGetsOtherMemory) {
  const auto executor = build(step_trace());
  const at::Tensor x = torch::ones({4, 4});
  for (int i = 1; i <= 3; ++i) {
    const at::Tensor w = torch::full({4, 4}, static_cast<float>(i));
    EXPECT_EQ(executor->run({{w, x}, {}, {}}).outputs[0].item<float>(), 64.0F * static_cast<float>(i));
  }
}

TEST(Executor, FollowsABatchThatIsASliceOfSomethingLarger) {
  const auto executor = build(step_trace());
  const at::Tensor w = torch::eye(4);
  const at::Tensor data = torch::arange(64).reshape({16, 4}).to(at::kFloat);
  const at::Tensor x = data.slice(0, 4, 8);
  ASSERT_EQ(executor->why_not({w, x}), "");
  EXPECT_EQ(executor->run({{w, x}, {}, {}}).outputs[0].item<float>(), x.sum().item<float>());
}

TEST(Executor, RunsOnAnyThread) {
  const auto executor = build(step_trace());
  const at::Tensor x = torch::ones({4, 4});
  float here = 0;
  float there = 0;
  here = executor->run({{torch::ones({4, 4}), x}, {}, {}}).outputs[0].item<float>();
  std::thread([&] { there = executor->run({{torch::ones({4, 4}), x}, {}, {}}).outputs[0].item<float>(); }).join();
  EXPECT_EQ(here, there);
}

TEST(Executor, SaysWhyTensorsDoNotFit) {
  const auto executor = build(step_trace());
  const at::Tensor w = torch::ones({4, 4});
  EXPECT_EQ(executor->why_not({w, torch::ones({4, 5})}), "batch '0' was f32[4, 4] and is now Float[4, 5]");
  EXPECT_EQ(executor->why_not({w, at::Tensor()}), "batch '0' was f32[4, 4] and is now nothing");
  EXPECT_EQ(executor->why_not({w.to(at::kDouble), w}), "parameter 'w' was f32[4, 4] and is now Double[4, 4]");
  EXPECT_EQ(executor->why_not({w, w}), "two of the step's tensors now share memory");
  EXPECT_EQ(executor->why_not({w.t(), w.clone()}), "parameter 'w' had strides [4, 1] and has strides [1, 4]");
}

TEST(Executor, UnknownOperatorsAreRefused) {
  Trace trace = step_trace();
  trace.calls[1].op = "aten::no_such_op";
  EXPECT_USER_ERROR(build(trace), "the trace calls aten::no_such_op, which this LibTorch does not have");
  trace.calls[1].op = "aten::addmm";
  EXPECT_USER_ERROR(build(trace), "the step calls aten::addmm with 2 arguments, this LibTorch's takes 5");
}

TEST(Executor, AnAllocationThatIsNotAsPlannedIsCountedAndStaysRight) {
  const auto run = [](const std::string& planned, const std::string& instead) {
    std::string text(to_text(step_trace()));
    text.replace(text.find(planned), planned.size(), instead);
    const auto executor = build(parse_trace(text));
    const at::Tensor x = torch::randn({4, 4});
    const at::Tensor w = torch::randn({4, 4});
    const at::Tensor expected = torch::relu(x.mm(w.t())).sum();
    const at::Tensor scaled = w * 0.5;
    const StepResult result = executor->run({{w, x}, {}, {}});
    EXPECT_TRUE(torch::equal(result.outputs[0], expected));
    EXPECT_TRUE(torch::equal(w, scaled));
    return result.memory;
  };
  // A workspace that the kernel never asks for: what it does ask for has its place all the same.
  MemoryCounts counts = run("  alloc 64 @s2", "  alloc 12345 [1, 2)\n  alloc 64 @s2");
  EXPECT_EQ(counts.served, 3U);
  EXPECT_EQ(counts.unplanned, 0U);
  // The number inside mul_ is larger than what was planned, or nothing was.
  for (const char* instead : {"  alloc 2 [11, 12)\n", ""}) {
    counts = run("  alloc 4 [11, 12)\n", instead);
    EXPECT_EQ(counts.served, 2U) << instead;
    EXPECT_EQ(counts.unplanned, 1U) << instead;
    EXPECT_EQ(counts.unplanned_bytes, 4U) << instead;
  }
}

}  // namespace
}  // namespace stepc
