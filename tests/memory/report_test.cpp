// Where the bytes go: a small step by hand, the picture's text, and sums on random orders of it.
#include "memory/report.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "memory/order/plan_order.h"

namespace stepc {
namespace {

Graph step() {
  return parse_graph(R"(stepc.graph 1
input %0: f32[256] = parameter "w"
input %1: f32[256] = optimizer_state "m"
input %2: f32[256] = batch "x"
%3: f32[256] = mul(%0, %2) | forward "a<b"
%4: f32[256] = exp(%3) | forward "layer"
%5: f32[256] = mul(%3, %4) | forward "layer"
%6: f32[256] = mul(%5, %4) | backward "layer"
%7: f32[256] = mul(%6, %3) | backward "a<b"
%8: f32[256] = add(%1, %7) | update ""
%9: f32[256] = sub(%0, %8) | update ""
update %0 = %9
update %1 = %8
)");
}

uint64_t at(const MemoryReport& report, ByteClass byte_class) {
  return report.at_peak[static_cast<size_t>(byte_class)];
}

TEST(MemoryReport, SaysWhoHasWhatAtThePeak) {
  const Graph graph = step();
  const GraphMemory memory = graph_memory(graph, {.workspace_bytes = [&](NodeId node) {
                                            return uint64_t{graph.nodes[node.index()].op == "exp" ? 2048U : 0U};
                                          }});
  const PlannedOrder plan = plan_order(memory.problem);
  const MemoryReport report = memory_report(graph, memory, plan.order, 4096);
  EXPECT_EQ(report.timeline.size(), plan.order.size());
  EXPECT_EQ(report.arena_bytes, 4096U);
  EXPECT_EQ(report.peak_bytes, 3 * 1024 + plan.peak_bytes);
  EXPECT_EQ(report.peak_node, "forward exp in 'layer'");
  EXPECT_EQ(at(report, ByteClass::kParameters), 1024U);
  EXPECT_EQ(at(report, ByteClass::kOptimizerState), 1024U);
  EXPECT_EQ(at(report, ByteClass::kBatch), 1024U);
  EXPECT_EQ(at(report, ByteClass::kActivations), 2048U);
  EXPECT_EQ(at(report, ByteClass::kWorkspaces), 2048U);
  EXPECT_EQ(at(report, ByteClass::kGradients), 0U);
  ASSERT_EQ(report.activations.size(), 2U);
  EXPECT_EQ(report.activations[0].module, "a<b");
  EXPECT_EQ(report.activations[0].bytes, 1024U);
  const auto last_gradient = report.timeline[4];
  EXPECT_EQ(last_gradient[static_cast<size_t>(ByteClass::kGradients)], 1024U);
  EXPECT_EQ(to_text(report, 1), R"(peak 7.0 KiB at instruction 2 of 7: forward exp in 'layer'
  parameters            1.0 KiB   14.3 %
  optimizer state       1.0 KiB   14.3 %
  batch                 1.0 KiB   14.3 %
  activations           2.0 KiB   28.6 %
  workspaces            2.0 KiB   28.6 %
arena 4.0 KiB, for all that is not the program's own
activations by module
  a<b                                           1.0 KiB
  1 others                                      1.0 KiB
)");
  EXPECT_EQ(
      allocated_text(report),
      "workspace of forward exp 2.0 KiB in 'layer', forward exp 1.0 KiB in 'layer', forward mul 1.0 KiB in 'a<b'");
}

// Equal ops of one phase are one entry, which names the module of the largest.
TEST(MemoryReport, SaysWhatAllocates) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[256] = batch "x"
%1: f32[256] = exp(%0) | forward "small"
%2: f32[512] = concat(%1, %1) {dim=0} | forward ""
%3: f32[512] = exp(%2) | forward "large"
%4: f32[768] = concat(%1, %3) {dim=0} | backward ""
return %4
)");
  const GraphMemory memory = graph_memory(graph);
  const MemoryReport report = memory_report(graph, memory, program_order(memory.problem), 0);
  EXPECT_EQ(allocated_text(report, 2),
            "backward concat 3.0 KiB outside of modules, 2 of forward exp 3.0 KiB, the largest in 'large'");
  EXPECT_EQ(allocated_text(memory_report({}, {}, {}, 0)), "");
}

TEST(MemoryReport, TheTimelineSumsToTheLiveBytes) {
  const Graph graph = step();
  const GraphMemory memory = graph_memory(graph);
  const PlannedOrder plan = plan_order(memory.problem);
  const MemoryReport report = memory_report(graph, memory, plan.order, 4096);
  uint64_t most = 0;
  for (const auto& classes : report.timeline) {
    uint64_t sum = 0;
    for (uint64_t bytes : classes) sum += bytes;
    most = std::max(most, sum);
  }
  EXPECT_EQ(most, report.peak_bytes);
  EXPECT_EQ(most, 3 * 1024 + plan.peak_bytes);
}

TEST(MemoryReport, ThePictureNamesItsClassesAndItsPeak) {
  const Graph graph = step();
  const GraphMemory memory = graph_memory(graph);
  const std::string svg = timeline_svg(memory_report(graph, memory, plan_order(memory.problem).order, 4096), "a & b");
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (std::string_view text : {"a &amp; b", "<title>parameters</title>", "<title>activations</title>",
                                "<title>gradients</title>", "instructions 1 to 7"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  EXPECT_EQ(svg.find("a<b"), std::string::npos);
  const MemoryReport nothing = memory_report({}, {}, {}, 0);
  EXPECT_EQ(nothing.peak_bytes, 0U);
  EXPECT_TRUE(timeline_svg(nothing, "").ends_with("</svg>\n"));
}

}  // namespace
}  // namespace stepc
