// How much goes into a bucket.
#include "passes/merge_collectives.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"

namespace stepc {
namespace {

// By bucket: how many of `count` gradients of `elements` float32 each go together.
std::vector<size_t> bucket_sizes(int64_t count, int64_t elements, uint64_t bucket_bytes, double share = 1.0 / 8) {
  GraphBuilder b;
  b.graph().mesh = make_mesh({{"dp_replicate", 2}});
  for (int64_t i = 0; i < count; ++i) {
    const TensorId gradient =
        b.graph().add_input({InputKind::kBatch, str("{}", i), {}, {}, 0}, {DType::kF32, {elements}});
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor =
        b.add("all_reduce", {gradient}, {{"axes", Shape{0}}, {"ranks", int64_t{2}}, {"reduce", std::string("sum")}});
  }
  const Graph merged = merge_collectives(b.take(), bucket_bytes, share);
  verify_ops(merged);
  std::vector<size_t> sizes;
  for (const Node& node : merged.nodes) sizes.push_back(node.inputs.size());
  return sizes;
}

TEST(MergeCollectives, ABucketIsBounded) {
  constexpr uint64_t kMega = 1 << 20;
  EXPECT_EQ(bucket_sizes(32, kMega / 4, 4 * kMega), std::vector<size_t>(8, 4)) << "by its bytes";
  EXPECT_EQ(bucket_sizes(16, 1 << 14, 4 * kMega), std::vector<size_t>(8, 2)) << "and an eighth of all";
  EXPECT_EQ(bucket_sizes(16, 64, 4 * kMega), std::vector<size_t>(1, 16)) << "which does not count for a few bytes";
  EXPECT_EQ(bucket_sizes(3, 8 * kMega, 4 * kMega), std::vector<size_t>(3, 1)) << "a large one goes alone";
  EXPECT_EQ(bucket_sizes(4, 64, 0), std::vector<size_t>(4, 1)) << "no buckets";
  EXPECT_EQ(bucket_sizes(16, 1 << 14, 4 * kMega, 0.5), std::vector<size_t>(2, 8)) << "a larger part of all";
}

}  // namespace
}  // namespace stepc
