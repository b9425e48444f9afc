// The text of lowered groups, and what the verifier of a LoopProgram finds.
#include "loops/lower/lower.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "loops/expand_math.h"
#include "ops/op_def.h"

namespace stepc {
namespace {

Graph group(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  return graph;
}

const std::string_view kRows = R"(input %0: bf16[6, 40] = captured "0"
input %1: f32[40] = captured "1"
%2: f32[6, 40] = cast(%0) {dtype=f32} | forward ""
%3: f32[6] = sum(%2) {dims=[1], keepdim=false} | forward ""
%4: f32[6, 1] = reshape(%3) {shape=[6, 1]} | forward ""
%5: f32[6, 40] = sub(%2, %4) | forward ""
%6: f32[6, 40] = mul(%5, %1) | forward ""
%7: f32[40] = sum(%6) {dims=[0], keepdim=false} | forward ""
return %6
return %7
)";

// Sweep after sweep over a row, and a share of the sum over all rows for each item.
TEST(Lower, RowsAndASumOverThem) {
  EXPECT_EQ(to_text(lower(group(kRows))), R"(stepc.loops 1
buffer b0: bf16 input 240
buffer b1: f32 input 40
buffer b2: f32 output 240
buffer b3: f32 output 40
buffer b4: f32 scratch 40 at 0
scratch 192
phase items 1 grain 68
  v0: f32 = constant -0.0
  v1 = loop i0 item
    v2 = loop i2 to 40 vector
      v3 = store v0 to b4[i0*40 + i2]
    v4 = end
    v5 = loop i1 chunk 102 of 6
      v6: f32 = accumulator sum from -0.0
      v7 = loop i2 to 40 vector
        v8: f32 = load b0[i1*40 + i2]
        v9 = accumulate v6 v8
      v10 = end
      v11: f32 = finish v6
      v12 = loop i2 to 40 vector
        v13: f32 = load b0[i1*40 + i2]
        v14: f32 = sub v13 v11
        v15: f32 = load b1[i2]
        v16: f32 = mul v14 v15
        v17: f32 = load b4[i0*40 + i2]
        v18: f32 = add v17 v16
        v19 = store v18 to b4[i0*40 + i2]
        v20 = store v16 to b2[i1*40 + i2]
      v21 = end
    v22 = end
  v23 = end
phase items 40 grain 16384
  v0 = loop i0 item vector
    v1: f32 = accumulator sum from -0.0
    v2 = loop i1 to 1
      v3: f32 = load b4[i0 + i1*40]
      v4 = accumulate v1 v3
    v5 = end
    v6: f32 = finish v1
    v7 = store v6 to b3[i0]
  v8 = end
)");
}

TEST(Lower, ContiguousElementsAreOneLoop) {
  EXPECT_EQ(to_text(lower(group(R"(input %0: f32[3, 4, 5] = captured "0"
%1: f32[3, 4, 5] = neg(%0) | forward ""
%2: f32[12, 5] = reshape(%1) {shape=[12, 5]} | forward ""
return %2
)"))),
            R"(stepc.loops 1
buffer b0: f32 input 60
buffer b1: f32 output 60
in place b0 b1
phase items 60 grain 16384
  v0 = loop i0 item vector
    v1: f32 = load b0[i0]
    v2: f32 = neg v1
    v3 = store v2 to b1[i0]
  v4 = end
)");
}

TEST(Lower, NothingToDoIsAPhaseWithoutStores) {
  const LoopProgram program = lower(group(R"(input %0: f32[0, 4] = captured "0"
%1: f32[0, 4] = neg(%0) | forward ""
return %1
)"));
  EXPECT_NO_THROW(verify(program));
  EXPECT_EQ(program.phases.size(), 1U);
}

TEST(Lower, GroupsOnKernelsAreRefusedInOneLine) {
  const Graph graph = group(R"(input %0: f32[4, 4] = captured "0"
%1: f32[4, 4], %2: i64[4, 4] = sort(%0) {descending=false, dim=1} | forward ""
return %1
)");
  EXPECT_EQ(why_no_loops(graph), "sort has 2 results");
  EXPECT_THROW(lower(graph), UserError);
}

template <class F>
void expect_broken(std::string_view what, F&& change) {
  LoopProgram program = lower(group(kRows));
  ASSERT_NO_THROW(verify(program));
  change(program.phases[0]);
  try {
    verify(program);
    FAIL() << "nothing was wrong; expected: " << what;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

TEST(LoopProgram, VerifierNamesTheBrokenPromise) {
  expect_broken("is not in scope", [](LoopPhase& phase) { phase.instructions[14].args[0] = 8; });
  expect_broken("reaches 240 of 240", [](LoopPhase& phase) { phase.instructions[8].index.offset = 1; });
  expect_broken("i1 is looped over twice", [](LoopPhase& phase) { phase.instructions[7].loop = 1; });
  expect_broken("a loop is not closed", [](LoopPhase& phase) { phase.instructions.pop_back(); });
  expect_broken("argument 0 is f32 beside f64",
                [](LoopPhase& phase) { phase.instructions[14].type = ValueType::kF64; });
  expect_broken("the first variable of a phase is its item", [](LoopPhase& phase) { phase.variables.clear(); });
}

TEST(ExpandMath, LeavesNoElementaryFunctionOfF32AndContractsProducts) {
  const LoopProgram program = expand_math(lower(group(R"(input %0: f32[9] = captured "0"
%1: f32[9] = tanh(%0) | forward ""
%2: f32[9] = mul(%0, %0) | forward ""
%3: f32[9] = add(%2, %1) | forward ""
return %3
)")));
  EXPECT_NO_THROW(verify(program));
  size_t products = 0;
  for (const LoopInstruction& one : program.phases[0].instructions) {
    EXPECT_TRUE(one.op < LoopOp::kExp || one.type != ValueType::kF32) << name_of(one.op);
    products += one.op == LoopOp::kFma ? 1 : 0;
  }
  EXPECT_GT(products, 5U);
}

}  // namespace
}  // namespace stepc
