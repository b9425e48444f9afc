// The kernel of a tile from the nodes behind matmuls, and what such nodes may not be.
#include "loops/lower/epilogue.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "loops/lower/lower.h"
#include "ops/op_def.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// A matmul of (200, 96), and what is made of it.
Graph epilogue_group(std::string_view epilogue) {
  Graph graph = parse_graph(str(R"(stepc.graph 1
input %0: bf16[200, 32] = captured "0"
input %1: bf16[96, 32] = captured "1"
input %2: bf16[96] = captured "2"
input %3: f32[5, 40, 96] = captured "3"
input %4: f32[200, 1] = captured "4"
%5: bf16[200, 96] = matmul(%0, %1) {{transpose_a=false, transpose_b=true}} | forward ""
{})",
                                epilogue));
  verify_ops(graph);
  return graph;
}

TEST(Epilogue, IsAKernelOnOneTile) {
  Graph whole = epilogue_group(R"(%6: bf16[5, 40, 96] = reshape(%5) {shape=[5, 40, 96]} | forward ""
%7: bf16[5, 40, 96] = add(%6, %2) | forward ""
%8: f32[5, 40, 96] = cast(%7) {dtype=f32} | forward ""
%9: f32[5, 40, 96] = mul(%8, %3) | forward ""
%10: f32[5, 40, 1] = reshape(%4) {shape=[5, 40, 1]} | forward ""
%11: f32[5, 40, 96] = expand(%10) {shape=[5, 40, 96]} | forward ""
%12: f32[5, 40, 96] = mul(%9, %11) | forward ""
%13: f32[] = sum(%12) {dims=[0, 1, 2], keepdim=false} | forward ""
return %7
return %12
return %13
)");
  whole.inputs[3].strides = {8000, 200, 2};
  EXPECT_TRUE(has_epilogue(whole));
  EXPECT_EQ(why_no_epilogue(whole), "");
  const Epilogue epilogue = epilogue_of(whole, 72, 32, 64);
  EXPECT_EQ(to_text(epilogue.tile), R"(stepc.graph 1
input %0: f32[72, 32](64, 1) = captured "0"
input %2: bf16[32](1) = captured "1"
input %5: f32[72, 32](200, 2) = captured "2"
input %7: f32[72, 1](1, 0) = captured "3"
%1: bf16[72, 32] = cast(%0) {dtype=bf16} | forward ""
%3: bf16[72, 32] = add(%1, %2) | forward ""
%4: f32[72, 32] = cast(%3) {dtype=f32} | forward ""
%6: f32[72, 32] = mul(%4, %5) | forward ""
%8: f32[72, 32] = expand(%7) {shape=[72, 32]} | forward ""
%9: f32[72, 32] = mul(%6, %8) | forward ""
%10: f32[] = sum(%9) {dims=[0, 1], keepdim=false} | forward ""
return %3(96, 1)
return %9(96, 1)
return %10
)");
  EXPECT_EQ(epilogue.inputs, (std::vector<TileBuffer>{{2, 0, 1, false}, {3, 200, 2, false}, {4, 1, 0, false}}));
  EXPECT_EQ(epilogue.outputs, (std::vector<TileBuffer>{{0, 96, 1, false}, {1, 96, 1, false}, {2, 0, 0, true}}));
  EXPECT_EQ(why_no_loops(epilogue.tile), "");
}

TEST(Epilogue, AMatmulAloneHasNone) {
  const Graph alone = epilogue_group("return %5\n");
  EXPECT_FALSE(has_epilogue(alone));
  EXPECT_EQ(why_no_epilogue(alone), "");
}

TEST(Epilogue, SaysWhatCannotBeOne) {
  const auto why = [](std::string_view epilogue) { return why_no_epilogue(epilogue_group(epilogue)); };
  EXPECT_EQ(why(R"(%6: bf16[200, 1] = sum(%5) {dims=[1], keepdim=true} | forward ""
return %6
)"),
            "a sum of less than all, or not in f32");
  EXPECT_EQ(why(R"(%6: f32[200, 96] = cast(%5) {dtype=f32} | forward ""
%7: f32[] = sum(%6) {dims=[0, 1], keepdim=false} | forward ""
%8: f32[200, 96] = mul(%6, %7) | forward ""
return %8
)"),
            "a sum is read before it is whole");
  EXPECT_EQ(why(R"(%6: f32[200, 96] = cast(%5) {dtype=f32} | forward ""
%7: f32[] = sum(%6) {dims=[0, 1], keepdim=false} | forward ""
%8: f32[1, 1] = reshape(%7) {shape=[1, 1]} | forward ""
%9: f32[200, 96] = mul(%6, %8) | forward ""
return %9
)"),
            "a sum is read before it is whole");
  EXPECT_EQ(why(R"(%6: bf16[96, 200] = transpose(%5) {permutation=[1, 0]} | forward ""
return %6
)"),
            "transpose is not elementwise");
  EXPECT_EQ(why(R"(%6: bf16[100, 192] = reshape(%5) {shape=[100, 192]} | forward ""
%7: bf16[100, 192] = neg(%6) | forward ""
return %7
)"),
            "a tensor of [100, 192] beside matmuls of [200, 96]");
  EXPECT_EQ(why(R"(%6: bf16[96] = neg(%2) | forward ""
%7: bf16[200, 96] = add(%5, %6) | forward ""
return %6
return %7
)"),
            "an output of less than a tile");
  EXPECT_EQ(why(R"(%6: bf16[200, 32] = matmul(%5, %1) {transpose_a=false, transpose_b=false} | forward ""
%7: bf16[200, 32] = neg(%6) | forward ""
return %7
)"),
            "matmuls of several sizes");
}

TEST(Epilogue, RowsMustBeEvenlySpaced) {
  Graph whole = epilogue_group(R"(%6: bf16[5, 40, 96] = reshape(%5) {shape=[5, 40, 96]} | forward ""
%7: f32[5, 40, 96] = cast(%6) {dtype=f32} | forward ""
%8: f32[5, 40, 96] = add(%7, %3) | forward ""
return %8
)");
  whole.inputs[3].strides = {96, 480, 1};
  EXPECT_USER_ERROR(epilogue_of(whole, 128, 64, 64), "rows that are not evenly spaced");
}

}  // namespace
}  // namespace stepc
