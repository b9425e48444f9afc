// Who gets which memory while an instruction runs: results their places, what outlives the step the system's, the rest
// scratch memory; intra-op workers a slab each.
#include "runtime/instruction_memory.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

constexpr int kThreads = 3;

class InstructionMemoryTest : public ::testing::Test {
 protected:
  InstructionMemoryTest() { memory_.begin_step({arena_}); }

  void begin(std::vector<PlannedAllocation> allocations, Scratch scratch, Scratch worker_scratch = {}) {
    instruction_.allocations = std::move(allocations);
    instruction_.scratch = scratch;
    instruction_.worker_scratch = worker_scratch;
    memory_.begin(instruction_);
  }
  std::byte* at(size_t offset) { return arena_ + offset; }
  void* ask(size_t bytes, int worker = 0) { return memory_.allocate(bytes, worker); }

  alignas(64) std::byte arena_[4096] = {};
  Instruction instruction_;
  InstructionMemory memory_{kThreads};
};

TEST_F(InstructionMemoryTest, ResultsGetTheirPlacesOnce) {
  begin({{256, 1024, false}, {128, 0, true}, {256, 2048, false}}, {0, 512});
  EXPECT_EQ(ask(256), at(1024));
  EXPECT_EQ(ask(256), at(2048));
  EXPECT_EQ(ask(256), at(0)) << "a third one of that size is no result";
  EXPECT_EQ(ask(128), nullptr) << "it outlives the step";
  memory_.on_system_allocation(nullptr, 128, 0);
  EXPECT_EQ(memory_.counts().served, 3U);
  EXPECT_EQ(memory_.counts().kept, 1U);
  EXPECT_EQ(memory_.counts().unplanned, 0U);
  begin({{256, 1024, false}}, {});
  EXPECT_EQ(ask(256), at(1024)) << "again, for the next instruction";
}

TEST_F(InstructionMemoryTest, EachMemoryGivesWhatIsPlannedThere) {
  std::byte device[1024];
  memory_.begin_step({arena_, device, 2048});
  begin({{256, 2048 + 512, false, Space::kDevice}, {256, 1024, false, Space::kHost}, {64, 0, true, Space::kDevice}},
        {0, 512});
  EXPECT_EQ(ask(256), at(1024));
  EXPECT_EQ(memory_.allocate_on_device(256), device + 512);
  EXPECT_EQ(memory_.allocate_on_device(64), nullptr) << "it outlives the step";
  EXPECT_EQ(memory_.allocate_on_device(32), nullptr) << "scratch memory is the host's";
  memory_.on_arena_free(device + 512, 0);
  EXPECT_EQ(memory_.allocate_on_device(256), device + 512) << "again, once it is freed";
}

TEST_F(InstructionMemoryTest, ResultsAreAskedForInAnyOrder) {
  begin({{64, 1024, false}, {128, 2048, false}}, {});
  EXPECT_EQ(ask(128), at(2048));
  EXPECT_EQ(ask(64), at(1024));
}

TEST_F(InstructionMemoryTest, ScratchMemoryIsGivenBackAndRunsOut) {
  begin({}, {512, 256});
  EXPECT_EQ(ask(100), at(512));
  EXPECT_EQ(ask(128), at(640));
  EXPECT_EQ(ask(1), nullptr) << "full";
  memory_.on_system_allocation(nullptr, 1, 0);
  EXPECT_EQ(memory_.counts().unplanned, 1U);
  EXPECT_EQ(memory_.counts().unplanned_bytes, 1U);
  memory_.on_arena_free(at(512), 0);
  EXPECT_EQ(ask(128), at(512)) << "first fit";
  EXPECT_EQ(memory_.counts().arena_peak_bytes, 768U);
  begin({}, {512, 256});
  EXPECT_EQ(ask(256), at(512)) << "all of it again, for the next instruction";
}

TEST_F(InstructionMemoryTest, AResultMayTakeThePlaceThatATemporaryTensorHad) {
  instruction_.kind = Instruction::Kind::kAten;
  begin({{256, 1024, false}}, {0, 512});
  EXPECT_EQ(ask(256), at(1024)) << "whatever asks first";
  EXPECT_EQ(ask(256), at(0));
  memory_.on_arena_free(at(1024), 0);
  EXPECT_EQ(ask(256), at(1024));
  memory_.on_arena_free(at(1024), 0);
  begin({{256, 1024, false}}, {});
  memory_.allocate(256, 0);
  memory_.on_arena_free(at(1024), 0);
  EXPECT_EQ(ask(256), nullptr) << "without scratch memory of its own a recorded call's memory is planned one by one";
}

TEST_F(InstructionMemoryTest, OfSeveralCallsAResultKeepsItsPlace) {
  instruction_.kind = Instruction::Kind::kNodes;
  begin({{256, 1024, false}}, {0, 512});
  EXPECT_EQ(ask(256), at(1024));
  memory_.on_arena_free(at(1024), 0);
  EXPECT_EQ(ask(256), at(0)) << "what the first has made is there until the last ends";
}

TEST_F(InstructionMemoryTest, WorkersHaveASlabEach) {
  begin({{256, 1024, false}}, {0, 512}, {2048, 128});
  EXPECT_EQ(ask(100, 1), at(2048));
  EXPECT_EQ(ask(100, 2), at(2048 + 128));
  EXPECT_EQ(ask(1, 1), nullptr) << "full";
  memory_.on_system_allocation(nullptr, 1, 1);
  EXPECT_EQ(memory_.counts().unplanned, 1U);
  memory_.on_arena_free(at(2048), 1);
  EXPECT_EQ(ask(128, 1), at(2048));
  EXPECT_EQ(ask(64, kThreads), nullptr) << "no worker of the step";
  EXPECT_EQ(ask(256), at(1024)) << "the step's own thread is apart from them";
  EXPECT_EQ(memory_.counts().served, 4U);
}

TEST_F(InstructionMemoryTest, WorkersWithoutSlabsAreNotServed) {
  begin({{256, 1024, false}}, {0, 512});
  EXPECT_EQ(ask(256, 1), nullptr);
  memory_.on_system_allocation(nullptr, 256, 1);
  EXPECT_EQ(memory_.counts().unplanned, 1U);
  EXPECT_EQ(memory_.counts().unplanned_bytes, 256U);
  EXPECT_EQ(ask(256), at(1024));
}

TEST_F(InstructionMemoryTest, WhatTheProgramKeepsIsTheSystems) {
  begin({}, {0, 512});
  memory_.keep_next();
  EXPECT_EQ(ask(100), nullptr);
  memory_.on_system_allocation(nullptr, 100, 0);
  EXPECT_EQ(ask(100), at(0)) << "the next one only";
  EXPECT_EQ(memory_.counts().kept, 1U);
  EXPECT_EQ(memory_.counts().kept_bytes, 128U);
  EXPECT_EQ(memory_.counts().unplanned, 0U);
}

TEST_F(InstructionMemoryTest, CountsEveryStepAnew) {
  begin({{256, 1024, false}}, {});
  ask(256);
  memory_.note_use(3000);
  EXPECT_EQ(memory_.counts().arena_peak_bytes, 3000U);
  memory_.begin_step({arena_});
  EXPECT_EQ(ask(256), nullptr) << "no instruction runs";
  memory_.on_system_allocation(nullptr, 256, 0);
  EXPECT_EQ(memory_.counts().served, 0U);
  EXPECT_EQ(memory_.counts().arena_peak_bytes, 0U);
  EXPECT_EQ(memory_.counts().unplanned, 1U);
}

}  // namespace
}  // namespace stepc
