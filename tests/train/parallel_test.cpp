#include "train/config/parallel.h"

#include <gtest/gtest.h>

#include "tests/expect_user_error.h"

namespace stepc::train {
namespace {

RunConfig config_of(const RunConfig::Parallel& parallel) {
  RunConfig config;
  config.parallel = parallel;
  return config;
}

TEST(Parallel, OfOneRankThereIsNoMesh) { EXPECT_TRUE(strategy_of({}).mesh.axes.empty()); }

TEST(Parallel, AxesStandInTheirOrder) {
  const Strategy strategy = strategy_of(
      config_of({.dp_replicate = 2, .dp_shard = 4, .zero = 1, .cp = 2, .tp = 8, .sequence_parallel = false}));
  EXPECT_EQ(to_text(strategy.mesh), "dp_replicate=2,dp_shard=4,cp=2,tp=8");
  EXPECT_EQ(strategy.zero, 1);
  EXPECT_FALSE(strategy.sequence_parallel);
  EXPECT_EQ(to_text(strategy), "128 ranks (dp_replicate=2,dp_shard=4,cp=2,tp=8), zero 1, without sequence_parallel");
  EXPECT_EQ(to_text(strategy_of(config_of({.tp = 2}))), "2 ranks (tp=2)");
  EXPECT_EQ(to_text(strategy_of(config_of({.cp = 2, .context = "heads"}))),
            "2 ranks (cp=2), zero 3, context = \"heads\"");
  const Strategy narrow = strategy_of(config_of({.dp_replicate = 2, .reduce = "bfloat16"}));
  EXPECT_EQ(narrow.reduce, DType::kBF16);
  EXPECT_EQ(to_text(narrow), "2 ranks (dp_replicate=2), gradients sent as bf16");
}

TEST(Parallel, MinusOneIsWhatTheOthersLeave) {
  EXPECT_EQ(to_text(strategy_of(config_of({.ranks = 8, .dp_shard = -1, .tp = 2})).mesh), "dp_shard=4,tp=2");
  EXPECT_EQ(to_text(strategy_of(config_of({.ranks = 2, .dp_shard = -1, .tp = 2})).mesh), "tp=2");
  EXPECT_USER_ERROR(strategy_of(config_of({.dp_shard = -1})), "parallel.dp_shard = -1 is the ranks that the other");
  EXPECT_USER_ERROR(strategy_of(config_of({.ranks = 7, .dp_shard = -1, .tp = 2})),
                    "the other axes have 2 ranks, of which parallel.ranks = 7 is no multiple; the nearest mesh is "
                    "dp_shard=7");
  EXPECT_USER_ERROR(strategy_of(config_of({.dp_shard = 0})), "parallel.dp_shard = 0: must be at least 1, or -1");
}

TEST(Parallel, AMeshHasAsManyRanksAsThereAre) {
  EXPECT_EQ(strategy_of(config_of({.ranks = 4, .dp_shard = 4})).mesh.ranks(), 4);
  EXPECT_USER_ERROR(strategy_of(config_of({.ranks = 8, .dp_shard = 4})),
                    "parallel.ranks = 8, and the axes multiply to 4: dp_shard=4");
  EXPECT_EQ(strategy_of(config_of({.ranks = 8})).mesh, parse_mesh("dp_shard=8"));
  EXPECT_USER_ERROR(strategy_of(config_of({.dp_shard = 1 << 20, .tp = 2})), "more than 1048576 ranks");
}

TEST(Parallel, TheNearestMeshKeepsWhatItCan) {
  const auto nearest = [](const char* mesh, int64_t ranks) { return to_text(nearest_mesh(parse_mesh(mesh), ranks)); };
  EXPECT_EQ(nearest("dp_shard=4,tp=2", 4), "dp_shard=2,tp=2");
  EXPECT_EQ(nearest("tp=8", 4), "tp=4");
  EXPECT_EQ(nearest("dp_replicate=3,dp_shard=2", 8), "dp_replicate=4,dp_shard=2");
  EXPECT_EQ(nearest("dp_replicate=2,dp_shard=2,cp=2,tp=2", 24), "dp_replicate=2,dp_shard=3,cp=2,tp=2");
  EXPECT_EQ(nearest("cp=2", 7), "cp=7");
  EXPECT_EQ(nearest("", 6), "dp_shard=6");
  EXPECT_EQ(nearest("dp_replicate=64,cp=64,tp=64", 720720).substr(0, 13), "dp_replicate=");
}

TEST(Parallel, ARunsMeshIsOfItsRanks) {
  const Launch launch{.rank = 1, .ranks = 4, .by = "torchrun"};
  EXPECT_EQ(strategy_of(config_of({}), launch).mesh, parse_mesh("dp_shard=4"));
  EXPECT_EQ(strategy_of(config_of({.dp_shard = -1, .tp = 2}), launch).mesh, parse_mesh("dp_shard=2,tp=2"));
  EXPECT_USER_ERROR(strategy_of(config_of({.tp = 2}), launch),
                    "parallel.tp = 2 takes 2 ranks, and torchrun started 4: the nearest mesh is dp_shard=2,tp=2, and "
                    "parallel.dp_shard = -1 takes what the others leave");
  EXPECT_USER_ERROR(strategy_of(config_of({.ranks = 8}), launch), "parallel.ranks = 8, and torchrun started 4 ranks");
  EXPECT_USER_ERROR(strategy_of(config_of({.dp_shard = 8, .zero = 2}), Launch()),
                    "[parallel] asks for 8 ranks (dp_shard=8), zero 2, and this process runs alone: start it with "
                    "--ranks 8, torchrun or mpirun");
}

TEST(Parallel, WhatIsNotPinnedFollowsTheRanks) {
  const auto mesh = [](const RunConfig::Parallel& parallel, int64_t ranks) {
    return to_text(strategy_of(config_of(parallel), Launch{.ranks = ranks, .by = "torchrun"}).mesh);
  };
  for (const int64_t ranks : {2, 3, 7, 8}) EXPECT_EQ(mesh({.dp_shard = -1}, ranks), str("dp_shard={}", ranks));
  EXPECT_EQ(mesh({}, 3), "dp_shard=3");
  EXPECT_EQ(mesh({.dp_shard = -1}, 1), "");
  EXPECT_EQ(mesh({}, 1), "");
  EXPECT_EQ(mesh({.dp_replicate = 2, .dp_shard = -1, .tp = 2}, 8), "dp_replicate=2,dp_shard=2,tp=2");
  EXPECT_EQ(mesh({.dp_replicate = 2, .dp_shard = -1, .tp = 2}, 4), "dp_replicate=2,tp=2");
  EXPECT_USER_ERROR(mesh({.dp_replicate = 2, .dp_shard = -1, .tp = 2}, 6),
                    "parallel.dp_replicate = 2 and parallel.tp = 2 take a multiple of 4 ranks, and torchrun started 6");
  EXPECT_USER_ERROR(mesh({.dp_shard = -1, .tp = 2}, 1),
                    "parallel.tp = 2 takes a multiple of 2 ranks, and torchrun started 1: the nearest mesh is none");
  EXPECT_USER_ERROR(mesh({.dp_shard = 4}, 3),
                    "parallel.dp_shard = 4 takes 4 ranks, and torchrun started 3: the nearest mesh is dp_shard=3, and "
                    "parallel.dp_shard = -1 takes what the others leave");
  EXPECT_USER_ERROR(mesh({.ranks = 4}, 3), "parallel.ranks = 4, and torchrun started 3 ranks");
}

TEST(Parallel, RulesAreAlongAxesThatAreThere) {
  EXPECT_EQ(strategy_of(config_of({.tp = 2, .shard = {{"*.w", {{0, "tp"}}}}})).rules.size(), 1U);
  EXPECT_USER_ERROR(strategy_of(config_of({.tp = 2, .shard = {{"*.w", {{1, "pp"}}}}})),
                    "the rule '*.w' splits dimension 1 along 'pp', along which there are stages");
  EXPECT_USER_ERROR(strategy_of(config_of({.tp = 2, .shard = {{"*.w", {{1, "tpp"}}}}})),
                    "the rule '*.w' splits dimension 1 along 'tpp', which is no axis of a mesh; did you mean 'tp'?");
  EXPECT_USER_ERROR(strategy_of(config_of({.tp = 2, .shard = {{"*.w", {{0, "cp"}}}}})),
                    "along 'cp', and the mesh tp=2 has no more than one rank there");
}

TEST(Parallel, EveryRankAlongTpHasAHead) {
  check_tensor_parallel(strategy_of(config_of({.dp_shard = 64})), 4, 100);
  check_tensor_parallel(strategy_of(config_of({.tp = 3})), 4, 100);
  EXPECT_USER_ERROR(check_tensor_parallel(strategy_of(config_of({.tp = 8})), 6, 100),
                    "parallel.tp = 8: the model has 6 heads, and none is split; tp can be at most 6, and nothing is "
                    "padded at 2, 3, 6");
  EXPECT_USER_ERROR(check_tensor_parallel(strategy_of(config_of({.tp = 8})), 16, 4),
                    "parallel.tp = 8: the model has 4 classes, and each rank needs one");
}

TEST(Parallel, ARowHasATokenForEveryRankAlongCp) {
  EXPECT_NO_THROW(check_context_parallel(strategy_of(config_of({.cp = 64})), 64));
  EXPECT_NO_THROW(check_context_parallel(strategy_of(config_of({.tp = 64})), 2));
  EXPECT_USER_ERROR(check_context_parallel(strategy_of(config_of({.cp = 128})), 64),
                    "parallel.cp = 128: the longest row has 64 tokens, and each rank needs one; cp can be at most 64");
}

}  // namespace
}  // namespace stepc::train
