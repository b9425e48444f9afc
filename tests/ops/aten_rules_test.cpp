#include "ops/rules/aten_rules.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/text.h"
#include "ops/graph_builder.h"
#include "ops/rules/sharding_rule.h"

namespace stepc {
namespace {

Graph call_on(std::string_view inputs, std::string_view call) {
  std::string text = "stepc.graph 1\n";
  size_t count = 0;
  for (std::string_view type; !inputs.empty(); ++count) {
    const size_t end = inputs.find(';');
    type = inputs.substr(0, end);
    text += str("input %{}: {} = batch \"{}\"\n", count, type, count);
    inputs = end == std::string_view::npos ? "" : inputs.substr(end + 2);
  }
  return parse_graph(text + std::string(call) + " | forward \"\"\n");
}
std::string rule_of(const Graph& graph) { return to_text(sharding_rule_of(graph, graph.nodes[0])); }

TEST(AtenRules, WhatACallLeavesOutHasNoPlaceInItsRule) {
  EXPECT_EQ(rule_of(call_on("f32[4, 3, 8, 8]; f32[5, 3, 3, 3]",
                            "%2: f32[4, 5, 8, 8] = aten::convolution(%0, %1, none, [1, 1], [1, 1], [1, 1], false, "
                            "[0, 0], 1) -> %")),
            "({0}, {}, {}, {}) ({}, {}, {}, {}) -> ({0}, {}, {}, {}); 0 of 4 parallel");
  EXPECT_EQ(rule_of(call_on("f32[4, 5, 8, 8]; f32[4, 3, 8, 8]; f32[5, 3, 3, 3]",
                            "%3: f32[5, 3, 3, 3] = aten::convolution_backward(%0, %1, %2, none, [1, 1], [1, 1], "
                            "[1, 1], false, [0, 0], 1, b[false, true, false]) -> none, %, none")),
            "({0}, {}, {}, {}) ({0}, {}, {}, {}) ({}, {}, {}, {}) -> ({}, {}, {}, {}); 0 of 4 sum");
}

TEST(AtenRules, CallsOfOtherDimensionsHaveNone) {
  EXPECT_EQ(rule_of(call_on("f32[3, 8, 8]",
                            "%1: f32[3, 4, 4] = aten::avg_pool2d(%0, [2, 2], [2, 2], [0, 0], false, "
                            "true, none) -> %")),
            "({}, {}, {}) -> ({}, {}, {})");
  EXPECT_EQ(rule_of(call_on("f32[4]", "%1: f32[4] = aten::frob(%0) -> %")), "({}) -> ({})");
}

TEST(AtenRules, WhatGoesAlongADimensionLeavesItWhole) {
  const auto cummax = [](int dim) {
    return rule_of(call_on("f32[4, 8]", str("%1: f32[4, 8], %2: i64[4, 8] = aten::cummax(%0, {}) -> %, %", dim)));
  };
  EXPECT_EQ(cummax(1), "({0}, {}) -> ({0}, {}) ({0}, {}); 0 of 4 parallel");
  EXPECT_EQ(cummax(-1), cummax(1));
  EXPECT_EQ(cummax(0), "({}, {}) -> ({}, {}) ({}, {})");
  EXPECT_EQ(cummax(-2), cummax(0));
}

TEST(AtenRules, AShardsCallHasItsSizesAndStrides) {
  const Graph graph = call_on("f32[4, 2, 3, 3]; f32[2]; f32[2]",
                              "%3: f32[4, 2, 3, 3], %4: f32[4, 1], %5: f32[4, 1] = aten::native_group_norm(%0, %1, "
                              "%2, 4, 2, 9, 1, 1e-05) -> %, %, % layout 0(18, 1, 6, 2) result layout 0(18, 1, 6, 2)");
  const AtenCall half =
      local_aten_call(graph, graph.nodes[0], {{2, 2, 3, 3}, {2}, {2}}, {{2, 2, 3, 3}, {2, 1}, {2, 1}});
  EXPECT_EQ(std::get<int64_t>(half.args[3]), 2);
  EXPECT_EQ(half.layouts, graph.nodes[0].aten->layouts) << "channels-last";
  EXPECT_EQ(half.result_layouts, graph.nodes[0].aten->result_layouts);

  const Graph turned = call_on("f32[4, 2, 3, 3]",
                               "%1: f32[4, 2, 6, 6] = aten::upsample_nearest2d(%0, [6, 6], none, "
                               "none) -> % layout 0(1, 4, 24, 8)");
  EXPECT_TRUE(local_aten_call(turned, turned.nodes[0], {{2, 2, 3, 3}}, {{2, 2, 6, 6}}).layouts.empty());

  const Graph back = call_on("f32[4, 2, 6, 6]",
                             "%1: f32[4, 2, 3, 3] = aten::upsample_nearest2d_backward(%0, [6, 6], "
                             "[4, 2, 3, 3], none, none) -> %");
  const AtenCall local = local_aten_call(back, back.nodes[0], {{2, 2, 6, 6}}, {{2, 2, 3, 3}});
  EXPECT_EQ(std::get<Shape>(local.args[2]), (Shape{2, 2, 3, 3}));
  EXPECT_EQ(std::get<Shape>(local.args[1]), (Shape{6, 6}));
}

}  // namespace
}  // namespace stepc
