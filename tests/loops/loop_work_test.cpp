// What a phase does, counted.
#include "loops/loop_work.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

LoopWork work_of_text(const std::string& text) {
  const LoopProgram program = parse_loop_program("stepc.loops 1\n" + text);
  return work_of(program, program.phases.front());
}

TEST(LoopWork, LanesCountElementsAndWholeRegisters) {
  const auto count = [](int length) {
    const std::string n = std::to_string(length);
    return work_of_text("buffer b0: f32 input " + std::to_string(4 * length) + "\nbuffer b1: f32 output " +
                        std::to_string(4 * length) +
                        "\nphase items 4 grain 1\n  v0 = loop i0 item\n    v1 = loop i1 to " + n +
                        " vector\n      v2: f32 = load b0[i0*" + n +
                        " + i1]\n      v3: f32 = sqrt v2\n      v4: f32 = add v3 v2\n"
                        "      v5 = store v4 to b1[i0*" +
                        n + " + i1]\n    v6 = end\n  v7 = end\n");
  };
  const LoopWork whole = count(32);
  EXPECT_EQ(whole.lane_ops, 3 * 4 * 32);
  EXPECT_EQ(whole.lane_roots, 4 * 32);
  EXPECT_EQ(whole.scalar_ops + whole.calls + whole.gathers, 0);
  EXPECT_EQ(count(20).lane_ops, whole.lane_ops) << "20 elements take two registers, as 32 do";
}

TEST(LoopWork, AnOuterVectorLoopHasItsInnerLoopsInLanes) {
  const LoopWork work = work_of_text(
      "buffer b0: f32 input 1024\nbuffer b1: f32 output 32\nphase items 32 grain 8\n  v0 = loop i0 item vector\n"
      "    v1: f32 = accumulator sum from -0.0\n    v2 = loop i1 to 32\n      v3: f32 = load b0[i0 + i1*32]\n"
      "      v4 = accumulate v1 v3\n    v5 = end\n    v6: f32 = finish v1\n    v7 = store v6 to b1[i0]\n  v8 = end\n");
  EXPECT_EQ(work.lane_ops, 2 * 1024 + 2 * 32);
  EXPECT_EQ(work.scalar_ops, 0);
}

TEST(LoopWork, AcrossAStrideElementsAreReadOneByOne) {
  const LoopWork work = work_of_text(
      "buffer b0: f32 input 1024\nbuffer b1: f32 output 1024\nphase items 32 grain 8\n  v0 = loop i0 item\n"
      "    v1 = loop i1 to 32 vector\n      v2: f32 = load b0[i0 + i1*32]\n      v3 = store v2 to b1[i0*32 + i1]\n"
      "    v4 = end\n  v5 = end\n");
  EXPECT_EQ(work.gathers, 1024);
  EXPECT_EQ(work.lane_ops, 1024);
}

}  // namespace
}  // namespace stepc
