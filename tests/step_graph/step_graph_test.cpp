// Whole recorded training steps as Graphs: nothing stays opaque, the interpreter agrees with what eager PyTorch did
// (loss, gradient norm, every parameter and every optimizer state), and the passes keep that.
#include <set>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "ops/op_def.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"
#include "tests/step_graph/recorded_step.h"

namespace stepc {
namespace {

using test::Family;
using test::gpt2;
using test::grouped;
using test::RecordedStep;

std::set<std::string> opaque_calls(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes)
    if (node.aten) names.insert(node.op);
  return names;
}

// The largest error of anything that the step returned or changed.
double error_of(const Graph& graph, const RecordedStep& step, bool in_f64) {
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) {
    const Array& value = step.before.at({input.kind, input.key});
    inputs.push_back(in_f64 ? in_double(value) : value);
  }
  const std::vector<Array> outputs = interpret(in_f64 ? in_double(graph) : graph, inputs);
  double largest = 0;
  size_t returned = 0;
  size_t updates = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const GraphOutput& output = graph.outputs[i];
    if (output.kind == GraphOutput::Kind::kReturn) {
      largest = std::max(largest, largest_error(outputs[i], step.returned.at(returned++)));
    } else if (output.kind == GraphOutput::Kind::kUpdate) {
      const GraphInput& input = graph.inputs[output.input];
      largest = std::max(largest, largest_error(outputs[i], step.after.at({input.kind, input.key})));
      ++updates;
    }
  }
  EXPECT_EQ(returned, step.returned.size());
  size_t changed = 0;
  for (const auto& [key, value] : step.before) changed += same_bits(value, step.after.at(key)) ? 0 : 1;
  EXPECT_GE(updates, changed);
  return largest;
}

class StepGraph : public ::testing::TestWithParam<Family> {};

TEST_P(StepGraph, InterpretedAgreesWithEager) {
  const RecordedStep step(GetParam().config, at::kFloat);
  const Graph graph = functionalise(step.trace);
  verify_ops(graph);
  EXPECT_EQ(opaque_calls(graph), std::set<std::string>());
  EXPECT_EQ(parse_graph(to_text(graph)), graph);
  EXPECT_LE(error_of(graph, step, true), 2e-6);

  RunOptions options;
  options.verify = true;
  options.without = {
      "decompose",     "propagate_shardings", "partition",   "find_documents", "recompute", "merge_collectives",
      "cut_exchanges", "split_collectives",   "sum_matmuls", "fuse",           "order"};
  const Graph simpler = run_passes(graph, options).graph;
  EXPECT_LE(error_of(simpler, step, true), 2e-6);
  EXPECT_LT(simpler.nodes.size(), step.trace.calls.size()) << "fewer nodes than the step has calls";
  const Graph core = run_passes(simpler, {}).graph;
  EXPECT_LE(error_of(core, step, false), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, StepGraph,
                         ::testing::Values(Family{"llama", grouped("llama")}, Family{"qwen2", grouped("qwen2")},
                                           Family{"qwen3", grouped("qwen3", R"("head_dim":8,)")},
                                           Family{"olmo2", grouped("olmo2")}, Family{"gpt2", gpt2("0.0")}),
                         [](const auto& info) { return info.param.name; });

// bf16 weights with f32 masters: eager's own rounding is the difference.
TEST(StepGraph, InBf16AgreesUpToEagersRounding) {
  const RecordedStep step(grouped("llama"), at::kBFloat16);
  const Graph graph = functionalise(step.trace);
  verify_ops(graph);
  EXPECT_EQ(opaque_calls(graph), std::set<std::string>());
  EXPECT_LE(error_of(graph, step, false), 5e-3);
}

TEST(StepGraph, DropoutDrawsFromTheRngInput) {
  const RecordedStep step(gpt2("0.1"), at::kFloat);
  const Graph graph = functionalise(step.trace);
  verify_ops(graph);
  EXPECT_EQ(opaque_calls(graph), std::set<std::string>());
  std::set<int64_t> streams;
  size_t draws = 0;
  for (const Node& node : graph.nodes) {
    if (node.aten || !op_def(node.op).has(Trait::kRandom)) continue;
    streams.insert(node.attrs.get<int64_t>("stream"));
    ++draws;
  }
  EXPECT_GE(draws, 5U);
  EXPECT_EQ(streams.size(), draws) << "every draw has a stream of its own";
}

}  // namespace
}  // namespace stepc
