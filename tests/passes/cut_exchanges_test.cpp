// Exchanges and matmuls in parts mean what they did whole.
#include "passes/cut_exchanges.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/text.h"
#include "interp/interpret_ranks.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/rewrite/dead_code.h"
#include "passes/split_collectives.h"
#include "tests/interp/random_inputs.h"

namespace stepc {
namespace {

constexpr int64_t kRanks = 2, kHidden = 3, kWide = 5;

const Attrs kGroup = {{"axes", Shape{0}}, {"ranks", kRanks}};
Attrs reducing() {
  Attrs attrs = kGroup;
  attrs.set("reduce", std::string("sum"));
  return attrs;
}

// A rank's feed-forward layer, forward and backward, of `batch` rows of `tokens` tokens a rank: what it makes of them,
// and the gradients of its input and of its two weights.
class Layer {
 public:
  Layer(int64_t batch, int64_t tokens) : batch_(batch), tokens_(tokens) { b_.graph().mesh = parse_mesh("tp=2"); }

  Graph build() {
    const TensorId x = input({batch_, tokens_, kHidden}), up = input({kWide, kHidden}), down = input({kHidden, kWide}),
                   dy = input({batch_, tokens_, kHidden});
    const TensorId rows = gathered(x), wide = times(rows, up, true), act = b_.add("silu", {wide});
    leave(scattered(times(act, down, true)));
    b_.set_source({Phase::kBackward, "mlp"});
    const TensorId d_rows = gathered(dy), d_act = times(d_rows, down, false);
    const TensorId d_wide = b_.add("mul", {d_act, b_.add("sigmoid", {wide})});
    leave(scattered(times(d_wide, up, false)));
    leave(b_.add("matmul", {d_rows, act}, {{"transpose_a", true}}));
    leave(b_.add("matmul", {d_wide, rows}, {{"transpose_a", true}}));
    return b_.take();
  }

 private:
  TensorId input(const Shape& shape) {
    return b_.graph().add_input({InputKind::kCaptured, str("{}", b_.graph().inputs.size()), {}, {}, 0},
                                {DType::kF32, shape});
  }
  TensorId gathered(TensorId x) {
    const TensorId all = b_.transpose(b_.add("all_gather", {x}, kGroup), {1, 0, 2, 3});
    return b_.reshape(all, {batch_ * kRanks * tokens_, kHidden});
  }
  TensorId scattered(TensorId rows) {
    const TensorId parts = b_.transpose(b_.reshape(rows, {batch_, kRanks, tokens_, kHidden}), {1, 0, 2, 3});
    return b_.add("reduce_scatter", {parts}, reducing());
  }
  TensorId times(TensorId x, TensorId weight, bool transposed) {
    return b_.add("matmul", {x, weight}, {{"transpose_b", transposed}});
  }
  void leave(TensorId tensor) {
    b_.graph().outputs.emplace_back();
    b_.graph().outputs.back().tensor = tensor;
  }

  int64_t batch_, tokens_;
  GraphBuilder b_;
};

int64_t exchanges_in(const Graph& graph) {
  return std::ranges::count_if(graph.nodes, [](const Node& node) { return exchanges(collective_of(node)); });
}

void expect_same(const Graph& graph, const Graph& cut) {
  verify_ops(cut);
  std::vector<std::vector<Array>> inputs;
  for (uint64_t rank = 0; rank < static_cast<uint64_t>(kRanks); ++rank)
    inputs.push_back(test::random_inputs(graph, rank, 2));
  const auto before = interpret_ranks(graph, inputs), after = interpret_ranks(cut, inputs);
  for (size_t rank = 0; rank < inputs.size(); ++rank)
    for (size_t o = 0; o < before[rank].size(); ++o)
      EXPECT_EQ(largest_error(after[rank][o], before[rank][o]), 0) << "output " << o << " of rank " << rank;
}

TEST(CutExchanges, LayersMeanWhatTheyDid) {
  for (const auto& [batch, tokens] : {std::pair(1, 4), std::pair(1, 8), std::pair(2, 2), std::pair(4, 1)})
    for (const int64_t parts : {2, 4}) {
      SCOPED_TRACE(str("{} rows of {} tokens in {} parts", batch, tokens, parts));
      const Graph layer = Layer(batch, tokens).build();
      const Graph cut = dead_code(cut_exchanges(layer, parts, 0));
      const bool divides = batch % parts == 0 || tokens % parts == 0;
      EXPECT_EQ(exchanges_in(cut), divides ? 4 * parts : 4);
      expect_same(layer, cut);
      expect_same(layer, split_collectives(cut, 0));
    }
}

TEST(CutExchanges, LeavesWhatIsSmall) {
  const Graph layer = Layer(1, 4).build();
  const uint64_t part = kRanks * 4 * kHidden * sizeof(float) / 2;
  EXPECT_EQ(cut_exchanges(layer, 1, 0), layer);
  EXPECT_NE(cut_exchanges(layer, 2, part), layer);
  EXPECT_EQ(cut_exchanges(layer, 2, part + 1), layer);
}

}  // namespace
}  // namespace stepc
