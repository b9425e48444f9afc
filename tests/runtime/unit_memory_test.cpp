// Who gets which memory while a unit runs: results their places, what outlives the step the system's, the rest scratch
// memory.
#include "runtime/unit_memory.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

class UnitMemoryTest : public ::testing::Test {
 protected:
  std::byte* at(size_t offset) { return arena_ + offset; }
  void* ask(size_t bytes) { return memory_.allocate(bytes, /*worker=*/0); }

  alignas(64) std::byte arena_[4096] = {};
  UnitMemory memory_;
};

TEST_F(UnitMemoryTest, ResultsGetTheirPlacesOnce) {
  memory_.begin_step(arena_, /*learns=*/false);
  memory_.begin_unit(0, 512);
  memory_.expect({{256, at(1024)}, {128, nullptr}, {256, at(2048)}});
  EXPECT_EQ(ask(256), at(1024));
  EXPECT_EQ(ask(256), at(2048));
  EXPECT_EQ(ask(256), at(0)) << "a third one of that size is no result";
  EXPECT_EQ(ask(128), nullptr) << "it outlives the step";
  memory_.on_system_allocation(nullptr, 128, 0);
  EXPECT_EQ(memory_.counts().served, 3U);
  EXPECT_EQ(memory_.counts().unplanned, 0U);
}

TEST_F(UnitMemoryTest, ScratchMemoryIsGivenBackAndRunsOut) {
  memory_.begin_step(arena_, false);
  memory_.begin_unit(512, 256);
  EXPECT_EQ(ask(100), at(512));
  EXPECT_EQ(ask(128), at(640));
  EXPECT_EQ(ask(1), nullptr) << "full";
  memory_.on_system_allocation(nullptr, 1, 0);
  EXPECT_EQ(memory_.counts().unplanned, 1U);
  EXPECT_EQ(memory_.counts().unplanned_bytes, 1U);
  memory_.on_arena_free(at(512), 0);
  EXPECT_EQ(ask(128), at(512)) << "first fit";
  EXPECT_EQ(memory_.counts().arena_peak_bytes, 768U);
  memory_.begin_unit(512, 256);
  EXPECT_EQ(ask(256), at(512)) << "all of it again, for the next unit";
}

TEST_F(UnitMemoryTest, OtherThreadsAreNotServed) {
  memory_.begin_step(arena_, false);
  memory_.begin_unit(0, 512);
  memory_.expect({{256, at(1024)}});
  EXPECT_EQ(memory_.allocate(256, /*worker=*/1), nullptr);
  memory_.on_system_allocation(nullptr, 256, 1);
  EXPECT_EQ(memory_.counts().unplanned, 1U);
  EXPECT_EQ(ask(256), at(1024));
}

TEST_F(UnitMemoryTest, WhatTheProgramKeepsIsTheSystems) {
  memory_.begin_step(arena_, false);
  memory_.begin_unit(0, 512);
  memory_.keep_next();
  memory_.note_kept(100);
  EXPECT_EQ(ask(100), nullptr);
  memory_.on_system_allocation(nullptr, 100, 0);
  EXPECT_EQ(ask(100), at(0)) << "the next one only";
  EXPECT_EQ(memory_.counts().kept, 1U);
  EXPECT_EQ(memory_.counts().kept_bytes, 128U);
  EXPECT_EQ(memory_.counts().unplanned, 0U);
}

TEST_F(UnitMemoryTest, LearnsHowMuchAUnitNeeds) {
  memory_.begin_step(arena_, /*learns=*/true);
  memory_.begin_unit(0, 128);
  memory_.expect({{64, at(1024)}});
  EXPECT_EQ(ask(64), at(1024)) << "no scratch memory";
  EXPECT_EQ(ask(128), at(0));
  std::byte system[256];
  EXPECT_EQ(ask(256), nullptr);
  memory_.on_system_allocation(system, 256, 0);
  EXPECT_EQ(memory_.wanted_scratch_bytes(), 384U);
  memory_.on_system_free(system);
  memory_.on_arena_free(at(0), 0);
  EXPECT_EQ(ask(128), at(0));
  EXPECT_EQ(memory_.wanted_scratch_bytes(), 384U) << "the most that it held at once";
  EXPECT_EQ(memory_.counts().unplanned, 0U) << "learnt, not counted";
  memory_.begin_unit(0, 128);
  EXPECT_EQ(memory_.wanted_scratch_bytes(), 0U) << "each unit's own";
}

}  // namespace
}  // namespace stepc
