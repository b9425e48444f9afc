// The memory of many layers from the plan of two, beside the plan of all of them.
#include "plan/layer_memory.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/op_def.h"
#include "plan/plan_graph.h"

namespace stepc {
namespace {

constexpr int64_t kTokens = 512, kLayerWidth = 64;

// Layers of a matmul and tanh, and logits of so many words, whose gradient the backward pass begins with. `clips`: the
// update needs all gradients.
Graph step_of(int64_t layers, int64_t words, bool clips) {
  const std::string weight = str("f32[{}, {}]", kLayerWidth, kLayerWidth),
                    hidden = str("f32[{}, {}]", kTokens, kLayerWidth), head = str("f32[{}, {}]", kLayerWidth, words),
                    logits = str("f32[{}, {}]", kTokens, words);
  std::string text = "stepc.graph 1\n", updates;
  int64_t next = 0;
  const auto line = [&](const std::string& type, const std::string& call, const char* phase, const std::string& where) {
    text += str("%{}: {} = {} | {} \"{}\"\n", next, type, call, phase, where);
    return next++;
  };
  const auto matmul = [](int64_t a, int64_t b, bool transpose_a, bool transpose_b) {
    return str("matmul(%{}, %{}) {{transpose_a={}, transpose_b={}}}", a, b, transpose_a, transpose_b);
  };
  const auto layer = [](int64_t l) { return str("layers.{}", l); };
  for (int64_t l = 0; l < layers; ++l) text += str("input %{}: {} = parameter \"layers.{}.w\"\n", next++, weight, l);
  text += str("input %{}: {} = parameter \"head.w\"\n", next++, head);
  text += str("input %{}: {} = batch \"0\"\n", next++, hidden);
  std::vector<int64_t> x = {next - 1}, gradients;  // what each layer is given; of each, and of the head
  for (int64_t l = 0; l < layers; ++l) {
    const int64_t product = line(hidden, matmul(x.back(), l, false, false), "forward", layer(l));
    x.push_back(line(hidden, str("tanh(%{})", product), "forward", layer(l)));
  }
  const int64_t scores = line(logits, matmul(x.back(), layers, false, false), "forward", "head");
  const int64_t chances = line(logits, str("tanh(%{})", scores), "forward", "head");
  const int64_t errors = line(logits, str("mul(%{}, %{})", chances, chances), "backward", "head");
  gradients.resize(static_cast<size_t>(layers) + 1);
  gradients.back() = line(head, matmul(x.back(), errors, true, false), "backward", "head");
  int64_t back = line(hidden, matmul(errors, layers, false, true), "backward", "head");
  for (int64_t l = layers; l-- > 0;) {
    const auto at = static_cast<size_t>(l);
    const int64_t inner = line(hidden, str("mul(%{}, %{})", back, x[at + 1]), "backward", layer(l));
    gradients[at] = line(weight, matmul(x[at], inner, true, false), "backward", layer(l));
    back = line(hidden, matmul(inner, l, false, true), "backward", layer(l));
  }
  int64_t sum = -1;
  for (int64_t l = 0; clips && l <= layers; ++l) {
    const int64_t of_one =
        line("f32[]", str("sum(%{}) {{dims=[0, 1], keepdim=false}}", gradients[static_cast<size_t>(l)]), "update", "");
    sum = sum < 0 ? of_one : line("f32[]", str("add(%{}, %{})", sum, of_one), "update", "");
  }
  for (int64_t l = 0; l <= layers; ++l) {
    const std::string& type = l == layers ? head : weight;
    int64_t gradient = gradients[static_cast<size_t>(l)];
    if (clips)
      gradient =
          line(type,
               str("mul(%{}, %{})", gradient,
                   line(type,
                        str("expand(%{}) {{shape=[{}]}}", sum,
                            l == layers ? str("{}, {}", kLayerWidth, words) : str("{}, {}", kLayerWidth, kLayerWidth)),
                        "update", "")),
               "update", "");
    updates += str("update %{} = %{}\n", l, line(type, str("sub(%{}, %{})", l, gradient), "update", ""));
  }
  Graph graph = parse_graph(text + updates);
  verify_ops(graph);
  return graph;
}

Schedule plan_of(const Graph& graph, const MemoryBudget& budget = {}) {
  PlanGraphOptions options;
  options.budget = budget;
  return plan_graph(graph, nullptr, options).plan.schedule;
}

double peak(const Schedule& schedule) { return static_cast<double>(schedule.peak_bytes()); }

TEST(LayerMemory, OfItsOwnLayersItIsTheSchedules) {
  for (const bool clips : {false, true}) {
    const Schedule two = plan_of(step_of(2, 1024, clips));
    EXPECT_EQ(LayerMemory(two).peak_bytes(0), peak(two));
    EXPECT_EQ(LayerMemory(two).arena_bytes(0), static_cast<double>(two.arena_bytes));
  }
}

// A second layer adds nothing to the peak of one, which is its loss: of many the backward pass is.
TEST(LayerMemory, TheLossIsThePeakOfTwoLayersAndNotOfMany) {
  constexpr int64_t kWords = 1024, kLayers = 40;
  const Schedule one = plan_of(step_of(1, kWords, true)), two = plan_of(step_of(2, kWords, true)),
                 all = plan_of(step_of(kLayers, kWords, true));
  const double logits = 4.0 * kTokens * kWords, a_layer = 4.0 * kTokens * kLayerWidth;
  EXPECT_LT(peak(two) - peak(one), 1.1 * a_layer);
  EXPECT_GT(peak(two), logits);
  const double found = LayerMemory(two).peak_bytes((kLayers - 2) / 2.0);
  EXPECT_GE(found, 0.95 * peak(all));
  EXPECT_LE(found, 1.2 * peak(all));
  EXPECT_GT(found, kLayers * a_layer);
}

TEST(LayerMemory, OfAnyDepthItIsWhatThePlanTakes) {
  for (const int64_t words : {64, 512, 4096})
    for (const bool clips : {false, true})
      for (const int64_t layers : {4, 6, 8, 16}) {
        SCOPED_TRACE(str("{} layers, {} words{}", layers, words, clips ? ", clips" : ""));
        const LayerMemory two(plan_of(step_of(2, words, clips)));
        const double all = peak(plan_of(step_of(layers, words, clips)));
        const double found = two.peak_bytes(static_cast<double>(layers - 2) / 2);
        EXPECT_GE(found, 0.95 * all);
        EXPECT_LE(found, 1.2 * all);
      }
}

// Gradients that wait for their norm are held as activations are, and recomputation does not give them back.
TEST(LayerMemory, GradientsOfAllLayersWaitForTheirNorm) {
  constexpr int64_t kLayers = 64;
  const double gradients = 4.0 * kLayers * kLayerWidth * kLayerWidth;
  EXPECT_GT(LayerMemory(plan_of(step_of(2, 64, true), {MemoryBudget::Kind::kBytes, 1})).peak_bytes((kLayers - 2) / 2.0),
            gradients);
}

}  // namespace
}  // namespace stepc
