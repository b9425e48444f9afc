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

// A rank's layers, forward and backward, of `batch` rows of `tokens` tokens a rank: norms of a residual stream, a
// mixing of tokens, feed-forward; and the gradients of all weights. Without sequence parallelism every rank has all
// tokens between the matmuls.
class Layers {
 public:
  Layers(int64_t batch, int64_t tokens, bool is_sequence_parallel)
      : batch_(batch), tokens_(is_sequence_parallel ? tokens : tokens * kRanks), scatters_(is_sequence_parallel) {
    b_.graph().mesh = parse_mesh("tp=2");
  }

  Graph build(int64_t layers) {
    TensorId x = input({batch_, tokens_, kHidden});
    std::vector<Kept> kept;
    for (int64_t l = 0; l < layers; ++l) x = forward(x, kept.emplace_back());
    leave(x);
    b_.set_source({Phase::kBackward, "mlp"});
    for (int64_t l = layers; l-- > 0;) x = backward(x, kept[static_cast<size_t>(l)]);
    leave(x);
    return b_.take();
  }

 private:
  struct Kept {
    TensorId normed, wide, act, up, down, mix, rows, mixed;
  };

  TensorId forward(TensorId x, Kept& kept) {
    kept.mix = input({kHidden, kHidden});
    kept.up = input({kWide, kHidden});
    kept.down = input({kHidden, kWide});
    kept.rows = gathered(norm(x));
    kept.mixed = mixed(times(kept.rows, kept.mix, true));
    x = b_.add("add", {x, scattered(times(kept.mixed, kept.mix, false))});
    kept.normed = norm(x);
    kept.wide = times(gathered(kept.normed), kept.up, true);
    kept.act = b_.add("silu", {kept.wide});
    return b_.add("add", {x, scattered(times(kept.act, kept.down, true))});
  }
  TensorId backward(TensorId dy, const Kept& kept) {
    const TensorId d_rows = gathered(dy), d_act = times(d_rows, kept.down, false);
    const TensorId d_wide = b_.add("mul", {d_act, b_.add("sigmoid", {kept.wide})});
    leave(b_.add("matmul", {d_rows, kept.act}, {{"transpose_a", true}}));
    leave(b_.add("matmul", {d_wide, gathered(kept.normed)}, {{"transpose_a", true}}));
    dy = b_.add("add", {dy, b_.add("mul", {kept.normed, scattered(times(d_wide, kept.up, false))})});
    const TensorId d_mixed = times(gathered(dy), kept.mix, true);
    leave(b_.add("matmul", {d_mixed, kept.mixed}, {{"transpose_a", true}}));
    return b_.add("add", {dy, scattered(times(mixed(d_mixed), kept.mix, false))});
  }

  TensorId input(const Shape& shape) {
    return b_.graph().add_input({InputKind::kCaptured, str("{}", b_.graph().inputs.size()), {}, {}, 0},
                                {DType::kF32, shape});
  }
  TensorId norm(TensorId x) {
    const TensorId squares = b_.sum(b_.add("square", {x}), {2}, true);
    return b_.add("mul", {x, b_.add("rsqrt", {b_.add("add", {squares, b_.full(1, DType::kF32)})})});
  }
  TensorId gathered(TensorId x) {
    if (!scatters_) return b_.reshape(x, {batch_ * tokens_, kHidden});
    const TensorId all = b_.transpose(b_.add("all_gather", {x}, kGroup), {1, 0, 2, 3});
    return b_.reshape(all, {batch_ * kRanks * tokens_, kHidden});
  }
  TensorId scattered(TensorId rows) {
    if (!scatters_) return b_.add("all_reduce", {b_.reshape(rows, {batch_, tokens_, kHidden})}, reducing());
    const TensorId parts = b_.transpose(b_.reshape(rows, {batch_, kRanks, tokens_, kHidden}), {1, 0, 2, 3});
    return b_.add("reduce_scatter", {parts}, reducing());
  }
  // Each token becomes a sum of those of its row, as attention makes it.
  TensorId mixed(TensorId rows) {
    const Shape flat = b_.shape(rows);
    const TensorId x = b_.reshape(rows, {batch_, flat[0] / batch_, kHidden});
    const TensorId scores = b_.add("matmul", {x, x}, {{"transpose_b", true}});
    return b_.reshape(b_.add("matmul", {b_.add("tanh", {scores}), x}), flat);
  }
  TensorId times(TensorId x, TensorId weight, bool transposed) {
    return b_.add("matmul", {x, weight}, {{"transpose_b", transposed}});
  }
  void leave(TensorId tensor) {
    b_.graph().outputs.emplace_back();
    b_.graph().outputs.back().tensor = tensor;
  }

  int64_t batch_, tokens_;
  bool scatters_;
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
    for (const int64_t layers : {1, 3})
      for (const bool is_sequence_parallel : {true, false})
        for (const int64_t parts : {2, 4}) {
          SCOPED_TRACE(str("{} layers, {} rows of {} tokens in {} parts", layers, batch, tokens, parts));
          const Graph whole = Layers(batch, tokens, is_sequence_parallel).build(layers);
          const Graph cut = dead_code(cut_exchanges(whole, parts, 0));
          const int64_t all = batch * tokens * (is_sequence_parallel ? 1 : kRanks);
          const bool divides = batch % parts == 0 || all / batch % parts == 0;
          // The gather for the gradient of a weight is in one piece: no matmul goes by its rows.
          const int64_t once = is_sequence_parallel ? layers : 0;
          EXPECT_EQ(exchanges_in(cut), divides ? (exchanges_in(whole) - once) * parts + once : exchanges_in(whole));
          expect_same(whole, cut);
          expect_same(whole, split_collectives(cut, 0));
        }
}

// Of a norm between a reduction and a gather too: a part is gathered before the next one is multiplied.
TEST(CutExchanges, APartGoesOnToTheNextMatmul) {
  const Graph cut = dead_code(cut_exchanges(Layers(1, 4, true).build(1), 2, 0));
  std::string order;
  for (const Node& node : cut.nodes) {
    if (node.source.phase != Phase::kForward) continue;
    if (node.op == "all_gather") order += "g";
    if (node.op == "reduce_scatter") order += "r";
  }
  EXPECT_EQ(order.substr(0, 8), "ggrgrgrr");
}

TEST(CutExchanges, LeavesWhatIsSmall) {
  const Graph layer = Layers(1, 4, true).build(1);
  const uint64_t part = kRanks * 4 * kHidden * sizeof(float) / 2;
  EXPECT_EQ(cut_exchanges(layer, 1, 0), layer);
  EXPECT_GT(exchanges_in(cut_exchanges(layer, 2, part)), exchanges_in(layer));
  EXPECT_EQ(exchanges_in(cut_exchanges(layer, 2, part + 1)), exchanges_in(layer));
}

}  // namespace
}  // namespace stepc
