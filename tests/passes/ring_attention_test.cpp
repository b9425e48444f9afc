// Attention around a ring on virtual ranks, with its gradients: what one device makes of the same operands.
#include "passes/partition/ring_attention.h"

#include <cmath>

#include <gtest/gtest.h>

#include "ops/communication.h"
#include "ops/graph_builder.h"
#include "tests/expect_user_error.h"
#include "tests/interp/random_inputs.h"
#include "tests/passes/run_partitioned.h"

namespace stepc {
namespace {

struct RingCase {
  int64_t ranks = 2;
  bool causal = false, zigzags = false;
  Shape mask = {};  // none: of no mask
};

constexpr int64_t kHeads = 4, kKeyHeads = 2, kWidth = 3;
int64_t tokens_of(const RingCase& one) { return 4 * one.ranks; }

// (q, k, v, gradient[, mask]) to the result, its sums, and the gradients of q, k and v, as one device or, with
// `is_split`, each split along its sequence.
Graph attention(const RingCase& one, bool is_split) {
  GraphBuilder b;
  const int64_t tokens = tokens_of(one);
  if (is_split) b.graph().mesh = make_mesh({{"cp", one.ranks}});
  const Pieces turning = {{2, {}}, {one.ranks, {0}, true}, {tokens / (2 * one.ranks), {}}};
  const auto lies = [&](TensorId id, std::optional<size_t> dim) {
    if (!is_split) return;
    Sharding sharding = Sharding::whole(b.shape(id).size());
    if (dim) sharding.dims[*dim] = canonical(one.zigzags ? turning : Pieces{{tokens, {0}}}, b.graph().mesh);
    b.graph().tensors[id.index()].sharding = sharding;
  };
  std::vector<TensorId> in;
  const auto add_input = [&](const Shape& shape, std::optional<size_t> dim) {
    in.push_back(b.graph().add_input({InputKind::kBatch, str("{}", in.size()), {}, {}, 0}, {DType::kF64, shape}));
    lies(in.back(), dim);
  };
  for (int64_t heads : {kHeads, kKeyHeads, kKeyHeads, kHeads}) add_input({2, heads, tokens, kWidth}, 2);
  const size_t rank = one.mask.size();
  if (rank > 0) add_input(one.mask, one.mask[rank - 2] == tokens ? std::optional(rank - 2) : std::nullopt);
  const Attrs attrs = {{"scale", 0.6}, {"causal", one.causal}};
  std::vector<TensorId> operands = {in[0], in[1], in[2]};
  if (rank > 0) operands.push_back(in[4]);
  std::vector<TensorId> results = b.add_all("attention", operands, attrs);
  for (TensorId result : results) lies(result, 2);
  std::vector<TensorId> of_gradient = {in[3], in[0], in[1], in[2], results[0], results[1]};
  if (rank > 0) of_gradient.push_back(in[4]);
  for (TensorId gradient : b.add_all("attention_backward", of_gradient, attrs)) {
    lies(gradient, 2);
    results.push_back(gradient);
  }
  for (TensorId result : results) {
    TensorId whole = result;
    if (is_split) {
      whole = b.add("reshard", {result});
      lies(whole, std::nullopt);
    }
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = whole;
  }
  return b.take();
}

// Each query sees itself and the key before it, and some queries of some heads all.
Array window(const TensorType& type, int64_t tokens) {
  Array mask(type);
  for (int64_t i = 0; i < mask.count(); ++i) {
    const int64_t key = i % tokens, query = i / tokens % tokens, other = i / tokens / tokens;
    const bool sees_all = (query + other) % 5 == 4;
    mask.set(i, type.shape[type.shape.size() - 2] == 1         ? 0.1 * static_cast<double>(key % 3)
                : sees_all || key == query || key + 1 == query ? 0.0
                                                               : -INFINITY);
  }
  return mask;
}

void expect_as_on_one_device(const RingCase& one) {
  const Graph whole = attention(one, false);
  verify_ops(whole);
  std::vector<Array> inputs = test::random_inputs(whole, 3, 7);
  if (!one.mask.empty()) inputs[4] = window(inputs[4].type, tokens_of(one));
  const Graph local = partition(attention(one, true));
  verify_ops(local);
  test::largest_error_on_ranks(whole, local, inputs);
}

TEST(RingAttention, IsThatOfOneDevice) {
  for (int64_t ranks : {2, 3, 4}) {
    const int64_t tokens = 4 * ranks;
    const std::vector<Shape> masks = {
        {}, {tokens, tokens}, {1, 1, tokens, tokens}, {2, kHeads, tokens, tokens}, {1, kHeads, 1, tokens}};
    for (const Shape& mask : masks)
      for (const auto& [causal, zigzags] : {std::pair(false, false), {false, true}, {true, true}}) {
        SCOPED_TRACE(
            str("{} ranks, causal {}, in zig-zag {}, mask [{}]", ranks, causal, zigzags, fmt::join(mask, ", ")));
        expect_as_on_one_device({ranks, causal, zigzags, mask});
      }
  }
}

double attention_flops(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes) {
    if (attends(node)) flops += flops_of(op_def(node.op), call_of(graph, node));
  }
  return flops;
}

// All ranks have one text. So each has the same work, and where that is the whole's divided nobody does more than its
// share.
TEST(RingAttention, SharesTheWorkOfOneDevice) {
  for (bool causal : {false, true}) {
    const RingCase one = {4, causal, true, {}};
    const double whole = attention_flops(attention(one, false));
    EXPECT_NEAR(attention_flops(partition(attention(one, true))) * 4, whole, whole * 0.05) << causal;
  }
}

TEST(RingAttention, SendsKeysAndValuesOnceAndTheirGradientsHome) {
  const std::vector<Communication> sent = communication_of(partition(attention({4, true, true, {}}, true)));
  const double keys = 2.0 * kKeyHeads * 4 * kWidth * 8;
  for (const Communication& one : sent) {
    if (one.op != "rotate") continue;
    EXPECT_EQ(one.count, 3U * 6) << "keys, values, both again for the backward pass, and their gradients";
    EXPECT_EQ(one.bytes, 3 * 6 * keys);
  }
}

}  // namespace
}  // namespace stepc
