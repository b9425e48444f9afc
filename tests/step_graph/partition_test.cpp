// Whole recorded steps on virtual ranks: every output and update is that of one device.
#include "passes/partition/partition.h"

#include <gtest/gtest.h>

#include "ops/communication.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"
#include "tests/passes/run_partitioned.h"
#include "tests/step_graph/recorded_step.h"

namespace stepc {
namespace {

using test::Family;
using test::gpt2;
using test::grouped;
using test::RecordedStep;

struct Preset {
  std::string name, mesh;
  int zero = 0;
  bool sequence_parallel = true;
};

class StepOnRanks : public ::testing::TestWithParam<Family> {};

TEST_P(StepOnRanks, EveryOutputIsThatOfOneDevice) {
  const RecordedStep step(GetParam().config, at::kFloat);
  RunOptions options;
  options.without = {"fuse_losses", "recompute", "fuse", "order"};
  const Graph graph = in_double(run_passes(functionalise(step.trace), options).graph);
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) inputs.push_back(in_double(step.before.at({input.kind, input.key})));
  const std::vector<Preset> presets = {{"dp", "dp_replicate=2"},
                                       {"zero1", "dp_shard=2", 1},
                                       {"zero2", "dp_shard=2", 2},
                                       {"zero3", "dp_shard=2", 3},
                                       {"hsdp", "dp_replicate=2,dp_shard=2", 3},
                                       {"tp", "tp=2", 0},
                                       {"tp without sp", "tp=2", 0, false},
                                       {"tp x zero3", "dp_shard=2,tp=2", 3},
                                       {"uneven", "dp_shard=3,tp=3", 3}};
  for (const Preset& preset : presets) {
    SCOPED_TRACE(preset.name);
    const Strategy strategy = {parse_mesh(preset.mesh), preset.zero, preset.sequence_parallel};
    const test::Partitioned made = test::partitioned(graph, strategy);
    test::largest_error_on_ranks(graph, made.local, inputs);
    if (std::getenv("SHOW")) {
      printf("%s\n%s", preset.name.c_str(), to_text(communication_of(made.local), strategy.mesh).c_str());
      if (preset.name == std::getenv("SHOW")) printf("%s", to_text(made.sharded.graph).c_str());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StepOnRanks,
                         ::testing::Values(Family{"llama", grouped("llama")},
                                           Family{"qwen3", grouped("qwen3", R"("head_dim":8,)")},
                                           Family{"olmo2", grouped("olmo2")}, Family{"gpt2", gpt2("0.0")}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepc
