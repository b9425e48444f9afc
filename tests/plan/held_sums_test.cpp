// Sums of gradients over micro-batches, which a micro-batch's function adds to.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/text.h"
#include "cost/named_target.h"
#include "ops/op_def.h"
#include "plan/plan_graph.h"
#include "plan/search_stages.h"

namespace stepc {
namespace {

// A weight with a momentum, which zero 1 splits: the ranks exchange its gradient in the shape of their parts, and add
// it up in that shape.
constexpr const char* kMomentumStep = R"(stepc.graph 1
input %0: bf16[64, 128] = parameter "w"
input %1: f32[64, 128] = optimizer_state "m"
input %2: bf16[512, 64] = batch "0"
%3: bf16[512, 128] = matmul(%2, %0) {transpose_a=false, transpose_b=false} | forward "layers.0"
%4: bf16[512, 128] = tanh(%3) | forward "layers.0"
%5: bf16[64, 128] = matmul(%2, %4) {transpose_a=true, transpose_b=false} | backward "layers.0"
%6: f32[64, 128] = cast(%5) {dtype=f32} | update ""
%7: f32[64, 128] = add(%1, %6) | update ""
%8: bf16[64, 128] = cast(%7) {dtype=bf16} | update ""
%9: bf16[64, 128] = sub(%0, %8) | update ""
update %0 = %9
update %1 = %7
)";

TEST(HeldSums, AreAddedToInPlace) {
  const Graph step = parse_graph(kMomentumStep);
  verify_ops(step);
  for (const char* target : {"h100", ""}) {
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(str("{} zero {}", target, zero));
      PlanGraphOptions options;
      if (*target != '\0') options.target = named_target(target);
      Strategy& strategy = options.passes.settings.strategy;
      strategy = {make_mesh({{"dp_shard", 2}}), zero};
      const BatchCut cut = cut_in_time(step, 2, strategy, options.target.features, {});
      ASSERT_EQ(cut.rounds[0].sums.size(), 1U);
      leave_out_what_is_done(options.passes);
      const Schedule schedule = plan_graph(cut.rounds[0].micro_batch, nullptr, options).plan.schedule;
      const auto is_copy = [](const Instruction& one) {
        return one.why == "an update that could not be made in place";
      };
      EXPECT_TRUE(std::ranges::none_of(schedule.instructions, is_copy)) << to_text(schedule);
    }
  }
}

}  // namespace
}  // namespace stepc
