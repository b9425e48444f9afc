// What collectives take on levels of links, against numbers by hand.
#include "cost/exchange.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

// Nodes of 8.
Rates two_levels() {
  Rates rates;
  rates.links = {{"nvlink", 8, 400e9, 1e-6}, {"infiniband", 0, 50e9, 1e-5}};
  return rates;
}

Exchange exchange(const Rates& rates, const Mesh& mesh, const Communication& sent) {
  return stepc::exchange(rates, mesh, op_def(sent.op).collective, sent);
}

// Of `bytes` that an all_gather gives in all.
Communication sent(std::string op, std::vector<Axis> axes, double ranks, double bytes) {
  const double times = op == "all_reduce" ? 2 : 1;
  return {std::move(op), std::move(axes), 1, times * (ranks - 1), times * (ranks - 1) / ranks * bytes, 0};
}

TEST(Exchange, CountsTheRanksOfALevel) {
  const std::vector<Link> links = two_levels().links;
  const Mesh mesh = make_mesh({{"dp_replicate", 4}, {"dp_shard", 4}, {"tp", 4}});
  EXPECT_EQ(ranks_by_level(links, mesh, {2}), (std::vector<int64_t>{4})) << "tp within a node";
  EXPECT_EQ(ranks_by_level(links, mesh, {1}), (std::vector<int64_t>{2, 4})) << "two of its ranks a node";
  EXPECT_EQ(ranks_by_level(links, mesh, {0}), (std::vector<int64_t>{1, 4})) << "one a node";
  EXPECT_EQ(ranks_by_level(links, mesh, {0, 1}), (std::vector<int64_t>{2, 16}));
  EXPECT_EQ(ranks_by_level(links, mesh, {0, 1, 2}), (std::vector<int64_t>{8, 64}));
  const Mesh uneven = make_mesh({{"dp_shard", 4}, {"tp", 3}});
  EXPECT_EQ(ranks_by_level(links, uneven, {1}), (std::vector<int64_t>{1, 3})) << "some groups go from node to node";
}

TEST(Exchange, ARingSharesTheLinksOfANode) {
  const Rates rates = two_levels();
  const Mesh mesh = make_mesh({{"dp_shard", 16}});
  // 8 links of 50 GB/s leave a node: as fast as within. 14 hops within, 1 between.
  const Exchange all = exchange(rates, mesh, sent("all_gather", {0}, 16, 16e9));
  EXPECT_NEAR(all.bytes_seconds, 15e9 / 400e9, 1e-9);
  EXPECT_EQ(all.algorithm, "ring");
  EXPECT_NEAR(all.latency_seconds, 14e-6 + 1e-5, 1e-12);
  const Mesh apart = make_mesh({{"dp_replicate", 2}, {"tp", 8}});
  EXPECT_NEAR(exchange(rates, apart, sent("all_gather", {0}, 2, 2e9)).bytes_seconds, 1e9 / 50e9, 1e-9);
  EXPECT_NEAR(exchange(rates, apart, sent("all_gather", {1}, 8, 8e9)).bytes_seconds, 7e9 / 400e9, 1e-9);
}

TEST(Exchange, FewBytesOfManyRanksGoByATree) {
  const Rates rates = two_levels();
  const Mesh mesh = make_mesh({{"dp_replicate", 1024}});
  const Exchange little = exchange(rates, mesh, sent("all_reduce", {0}, 1024, 1024));
  EXPECT_EQ(little.algorithm, "tree");
  EXPECT_NEAR(little.latency_seconds, 2 * (3 * 1e-6 + 7 * 1e-5), 1e-9) << "log2 of 8, and of 128 nodes";
  // A gather has no tree. Level by level: 7 messages within and 127 between, where a ring has 1023.
  const Exchange gather = exchange(rates, mesh, sent("all_gather", {0}, 1024, 1024));
  EXPECT_EQ(gather.algorithm, "hierarchical");
  EXPECT_NEAR(gather.latency_seconds, 7e-6 + 127e-5, 1e-9);
  // Of one rank a node.
  const Mesh apart = make_mesh({{"dp_shard", 128}, {"tp", 8}});
  const Exchange between = exchange(rates, apart, sent("all_gather", {0}, 128, 128e6));
  EXPECT_EQ(between.algorithm, "parallel trees");
  EXPECT_NEAR(between.latency_seconds, 7e-5, 1e-12);
  EXPECT_NEAR(between.bytes_seconds, 127e6 / 50e9, 1e-9);
}

TEST(Exchange, PairsSendOverTheirOwnLevel) {
  const Rates rates = two_levels();
  const Mesh mesh = make_mesh({{"cp", 16}});
  Communication one{"all_to_all", {0}, 1, 15, 15e9, 0};
  EXPECT_NEAR(exchange(rates, mesh, one).bytes_seconds, 7e9 / 400e9 + 8e9 / 50e9, 1e-9);
  one = {"rotate", {0}, 1, 1, 1e9, 0};
  EXPECT_NEAR(exchange(rates, mesh, one).bytes_seconds, 1e9 / 50e9, 1e-9) << "the pair between two nodes";
}

TEST(Exchange, WithoutLevelsIsARing) {
  Rates rates;
  rates.link_bytes_per_second = 1e6;
  rates.link_latency_seconds = 1e-3;
  const Exchange one = exchange(rates, make_mesh({{"dp_replicate", 4}}), sent("all_reduce", {0}, 4, 4e6));
  EXPECT_NEAR(one.bytes_seconds, 6, 1e-9);
  EXPECT_NEAR(one.latency_seconds, 6e-3, 1e-9);
}

}  // namespace
}  // namespace stepc
