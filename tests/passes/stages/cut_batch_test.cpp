// cut_batch() on small Traces: what keeps a batch's rows apart is a micro-batch's.
#include "passes/stages/cut_batch.h"

#include <gtest/gtest.h>

#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"

namespace stepc {
namespace {

BatchCut cut_of(const std::string& text, int64_t micro_batches) {
  RunOptions passes;
  passes.without = {"fuse_losses", "recompute", "merge_collectives", "split_collectives", "fuse", "order"};
  passes.settings.strategy.mesh = make_mesh({{std::string(kMicroBatchAxis), micro_batches}});
  const Trace trace = parse_trace("stepc.trace 1\n" + text + "ticks 0\n");
  verify(trace);
  return cut_batch(run_passes(functionalise(trace), passes).graph);
}

// As a vision transformer's first layer has it: its images become patches, and the gradient that reaches it is a window
// on that of the tokens, behind the class token's.
TEST(CutBatchOfTrace, PatchesOfAnImageAreItsRows) {
  const BatchCut cut = cut_of(R"(storage s0 bytes=128 external
storage s1 bytes=120 external
storage s2 bytes=48 external
storage s3 bytes=12 external
storage s4 bytes=48
storage s5 bytes=12
%0: f32[2, 1, 4, 4] @s0 = batch "0"
%1: f32[2, 5, 3] @s1 = batch "1"
%2: f32[3, 1, 2, 2] @s2 = parameter "w"
%3: f32[3] @s3 = parameter "b"
call 0 %4: f32[2, 3, 4](15, 1, 3)+3 @s1 = aten::as_strided(%1, [2, 3, 4], [15, 1, 3], 3) | backward "m"
call 1 %5: f32[2, 3, 2, 2](15, 1, 6, 3)+3 @s1 = aten::_reshape_alias(%4, [2, 3, 2, 2], [15, 1, 6, 3]) | backward "m"
call 2 undefined; %6: f32[3, 1, 2, 2] @s4; %7: f32[3] @s5 = aten::convolution_backward(%5, %0, %2, [3], [2, 2], [0, 0], [1, 1], false, [0, 0], 1, b[false, true, true]) | backward "m"
call 3 %2 = aten::sub_.Tensor(%2, %6) writes %2 | update "m"
call 4 %3 = aten::sub_.Tensor(%3, %7) writes %3 | update "m"
)",
                              2);
  EXPECT_EQ(cut.rows.size(), 2U);
  EXPECT_TRUE(cut.before.empty());
  EXPECT_EQ(to_text(cut.rounds[0].micro_batch), R"(stepc.graph 1
input %0: f32[1, 1, 4, 4] = batch "0"
input %1: f32[1, 5, 3] = batch "1"
input %10: f32[3, 1, 2, 2] = gradient "sum 0 f32[3, 1, 2, 2]"
input %12: f32[3] = gradient "sum 1 f32[3]"
%2: f32[1, 4, 3] = slice(%1) {shape=[1, 4, 3], starts=[0, 1, 0], steps=[1, 1, 1]} | backward "m"
%3: f32[4, 3] = reshape(%2) {shape=[4, 3]} | backward "m"
%4: f32[1, 1, 2, 2, 2, 2] = reshape(%0) {shape=[1, 1, 2, 2, 2, 2]} | backward "m"
%5: f32[1, 2, 2, 1, 2, 2] = transpose(%4) {permutation=[0, 2, 4, 1, 3, 5]} | backward "m"
%6: f32[4, 4] = reshape(%5) {shape=[4, 4]} | backward "m"
%7: f32[3, 4] = matmul(%3, %6) {transpose_a=true, transpose_b=false} | backward "m"
%8: f32[3, 1, 2, 2] = reshape(%7) {shape=[3, 1, 2, 2]} | backward "m"
%9: f32[3] = sum(%3) {dims=[0], keepdim=false} | backward "m"
%11: f32[3, 1, 2, 2] = add(%10, %8) | backward "m"
%13: f32[3] = add(%12, %9) | backward "m"
update %10 = %11
update %12 = %13
)");
}

}  // namespace
}  // namespace stepc
