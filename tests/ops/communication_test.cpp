#include "ops/communication.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

Attrs group(int64_t ranks) { return {{"axes", Shape{0}}, {"ranks", ranks}, {"reduce", std::string("sum")}}; }

TEST(Communication, IsThatOfARing) {
  const auto of = [](std::string_view op, int64_t ranks) { return communication_of(op, group(ranks), 4096).value(); };
  EXPECT_EQ(of("all_gather", 4).bytes, 3 * 4096) << "3/4 of what it gives";
  EXPECT_EQ(of("reduce_scatter", 4).bytes, 3 * 1024);
  EXPECT_EQ(of("all_to_all", 4).bytes, 3 * 1024);
  EXPECT_EQ(of("all_reduce", 4).bytes, 6 * 1024) << "a reduce_scatter and an all_gather";
  EXPECT_EQ(of("all_gather", 4).hops, 3);
  EXPECT_EQ(of("all_reduce", 2).hops, 2);
  Attrs turn = group(4);
  turn.set("by", int64_t{3});
  EXPECT_EQ(communication_of("rotate", turn, 4096)->bytes, 4096) << "all of it, once, however far";
  EXPECT_EQ(communication_of("rotate", turn, 4096)->hops, 1);
  EXPECT_FALSE(communication_of("reshard", {}, 1).has_value());
  EXPECT_FALSE(communication_of("add", {}, 1).has_value());
  EXPECT_FALSE(communication_of("aten::all_reduce", {}, 1).has_value());
}

TEST(Communication, OfAGraphIsSummedByKindAndAxes) {
  const Graph graph = parse_graph(R"(stepc.graph 1
mesh dp_shard=4,tp=2
input %0: f32[4, 64] = batch "0"
%1: f32[4, 64] = all_reduce(%0) {axes=[1], ranks=2, reduce="sum"} | forward ""
%2: f32[64] = reduce_scatter(%1) {axes=[0], ranks=4, reduce="sum"} | forward ""
%3: f32[4, 64] = all_gather(%2) {axes=[0], ranks=4} | forward ""
%4: f32[4, 64] = all_reduce(%3) {axes=[1], ranks=2, reduce="max"} | forward ""
%5: f32[4, 64] = all_reduce(%4) {axes=[0], ranks=4, reduce="sum"} | forward ""
return %5
)");
  const std::vector<Communication> sums = communication_of(graph);
  const std::vector<Communication> wanted = {{"all_gather", {0}, 1, 3, 768, 0},
                                             {"all_reduce", {0}, 1, 6, 1536, 0},
                                             {"all_reduce", {1}, 2, 4, 2048, 0},
                                             {"reduce_scatter", {0}, 1, 3, 768, 0}};
  EXPECT_EQ(sums, wanted);
  EXPECT_EQ(to_text({0, 1}, graph.mesh), "dp_shard+tp");
}

TEST(Communication, TheTableIsAsWideAsItsAxes) {
  const Mesh mesh = parse_mesh("dp_replicate=2,dp_shard=4,tp=2");
  std::vector<Communication> sent = {{"all_reduce", {0, 1, 2}, 12, 1, 2048, 0}, {"reduce_scatter", {2}, 3, 1, 96, 0}};
  EXPECT_EQ(to_text(sent, mesh, "it sends"),
            "it sends          along                       count       bytes\n"
            "  all_reduce      dp_replicate+dp_shard+tp       12     2.0 KiB\n"
            "  reduce_scatter  tp                              3        96 B\n");
  sent[0].seconds = 0.0015;
  EXPECT_EQ(to_text({sent[0]}, mesh, "each of 16 ranks sends"),
            "each of 16 ranks sends  along                       count       bytes          time\n"
            "  all_reduce            dp_replicate+dp_shard+tp       12     2.0 KiB      1.500 ms\n");
  EXPECT_EQ(to_text(std::vector<Communication>(), mesh, "it sends"), "it sends nothing\n");
}

}  // namespace
}  // namespace stepc
