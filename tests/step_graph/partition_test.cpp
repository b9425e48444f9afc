// Whole recorded steps on virtual ranks: every output and update is that of one device.
#include "passes/partition/partition.h"

#include <map>

#include <gtest/gtest.h>

#include "ops/communication.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"
#include "tests/expect_user_error.h"
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
  std::vector<std::string> keeps = {};
  Context context = Context::kGather;
  int64_t parts = 1;  // of exchanges and their matmuls
  [[nodiscard]] Strategy strategy() const { return {parse_mesh(mesh), zero, sequence_parallel, {}, keeps, context}; }
};
const std::vector<Preset>& presets() {
  static const std::vector<Preset> kPresets = {{"dp", "dp_replicate=2"},
                                               {"zero 1", "dp_shard=2", 1},
                                               {"zero 2", "dp_shard=2", 2},
                                               {"zero 3", "dp_shard=2", 3},
                                               {"hsdp", "dp_replicate=2,dp_shard=2", 3},
                                               {"tp", "tp=2"},
                                               {"tp without sp", "tp=2", 0, false},
                                               {"tp x zero 3", "dp_shard=2,tp=2", 3},
                                               {"cp", "cp=2"},
                                               {"cp x zero 3", "dp_shard=2,cp=2", 3},
                                               {"cp x tp", "cp=2,tp=2"},
                                               {"more ranks than key heads", "tp=4"},
                                               {"nothing divides", "dp_shard=3,tp=3", 3},
                                               {"tp in parts", "tp=2", 0, true, {}, Context::kGather, 2}};
  return kPresets;
}

// More of them than every family runs each time.
const std::vector<Preset>& rare_presets() {
  static const std::vector<Preset> kPresets = {
      {"zero 3, kept", "dp_shard=2", 3, true, {"dp_shard"}},
      {"tp, kept", "tp=2", 0, true, {"tp"}},
      {"cp, kept", "cp=2", 0, true, {"cp"}},
      {"all kept", "dp_shard=2,cp=2,tp=2", 3, true, {"dp_shard", "cp", "tp"}},
      {"hsdp, zero 1", "dp_replicate=2,dp_shard=2", 1},
      {"tp x zero 1", "dp_shard=2,tp=2", 1},
      {"tp without sp x zero 2", "dp_shard=2,tp=2", 2, false},
      {"cp without sp x tp", "cp=2,tp=2", 0, false},
      {"four axes", "dp_replicate=2,dp_shard=2,cp=2,tp=2", 3},
      {"more ranks than rows", "dp_shard=7", 3},
      {"odd sequence", "dp_shard=2,cp=3", 3},
      {"nothing divides, 15 ranks", "dp_shard=3,tp=5", 3},
      {"nothing divides, zero 1", "dp_shard=5,cp=3", 1},
      {"cp by heads", "cp=2", 0, true, {}, Context::kHeads},
      {"cp by heads x zero 3", "dp_shard=3,cp=2", 3, true, {}, Context::kHeads},
      {"cp around a ring", "cp=2", 0, true, {}, Context::kRing},
      {"cp around a ring x zero 3", "dp_shard=3,cp=4", 3, true, {}, Context::kRing},
      {"cp around a ring x tp", "dp_replicate=2,cp=2,tp=2", 0, true, {}, Context::kRing},
      {"cp around a ring x tp without sp", "cp=2,tp=2", 0, false, {}, Context::kRing},
      {"tp without sp in parts", "tp=2", 0, false, {}, Context::kGather, 2},
      {"tp x cp in parts", "cp=2,tp=2", 0, true, {}, Context::kGather, 2},
      {"tp x zero 3 in parts", "dp_shard=2,tp=2", 3, true, {}, Context::kGather, 2}};
  return kPresets;
}

Graph core_of(const RecordedStep& step) {
  RunOptions options;
  options.without = {"fuse_losses", "recompute", "fuse", "order"};
  return run_passes(functionalise(step.trace), options).graph;
}

// As the pass table makes it: with the fused loss where no axis splits its classes, and cleaned up.
Graph local_of(const Graph& graph, const Preset& preset, bool has_buckets = true) {
  RunOptions options;
  options.verify = true;
  options.settings.strategy = preset.strategy();
  if (!has_buckets) options.settings.strategy.bucket_bytes = 0;
  if (preset.parts > 1) options.settings.strategy.overlap_bytes = options.settings.strategy.bucket_bytes = 0;
  options.settings.exchange_parts = preset.parts;
  options.without = {"recompute", "fuse", "order"};
  return run_passes(graph, options).graph;
}

void expect_as_on_one_device(const RecordedStep& step, const std::vector<Preset>& on) {
  const Graph graph = in_double(core_of(step));
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) {
    const auto known = step.before.find({input.kind, input.key});
    inputs.push_back(known != step.before.end() ? in_double(known->second) : Array(graph.type(input.tensor)));
  }
  for (const Preset& preset : on) {
    SCOPED_TRACE(preset.name);
    test::largest_error_on_ranks(graph, local_of(in_double(functionalise(step.trace)), preset), inputs);
  }
}

using Sent = std::map<std::pair<std::string, std::string>, Communication>;  // by collective and axes
Sent sent_by(const Graph& graph, const Preset& preset) {
  const Mesh mesh = preset.strategy().mesh;
  Sent sent;
  for (const Communication& one : communication_of(local_of(graph, preset, /*has_buckets=*/false))) {
    std::vector<std::string> names;
    for (Axis axis : one.axes) names.push_back(mesh.axes[axis].name);
    sent[{one.op, str("{}", fmt::join(names, "+"))}] = one;
  }
  return sent;
}

class StepOnRanks : public ::testing::TestWithParam<Family> {};

TEST_P(StepOnRanks, EveryOutputIsThatOfOneDevice) {
  expect_as_on_one_device(RecordedStep(GetParam().config, at::kFloat), presets());
}

INSTANTIATE_TEST_SUITE_P(Families, StepOnRanks,
                         ::testing::Values(Family{"llama", grouped("llama")},
                                           Family{"tied", grouped("llama", R"("tie_word_embeddings":true,)")},
                                           Family{"qwen3", grouped("qwen3", R"("head_dim":8,)")},
                                           Family{"olmo2", grouped("olmo2")}, Family{"gpt2", gpt2("0.0")},
                                           Family{"gpt2_dropout", gpt2("0.1")}),
                         [](const auto& info) { return info.param.name; });

// The other families of docs/models.md, under two presets; --gtest_also_run_disabled_tests: all under all.
std::vector<Family> other_families() {
  const std::string scaled =
      R"("rope_scaling":{"rope_type":"llama3","factor":8,"original_max_position_embeddings":8},)";
  const std::string glm = R"("head_dim":8,"bos_token_id":null,"eos_token_id":null,"pad_token_id":null,)";
  const std::string biases = R"("attention_bias":true,"mlp_bias":true,)";
  const std::string window = R"("use_sliding_window":true,"sliding_window":3,"max_window_layers":1,)";
  return {{"llama31", grouped("llama", scaled + biases)},
          {"mistral", grouped("mistral", R"("sliding_window":3,)")},
          {"qwen2", grouped("qwen2", window)},
          {"olmo", grouped("olmo", R"("clip_qkv":0.5,)")},
          {"glm", grouped("glm", glm)},
          {"glm4", grouped("glm4", glm)},
          {"gemma2", grouped("gemma2", R"("head_dim":12,"sliding_window":3,)")},
          {"baichuan7b", grouped("baichuan")},
          {"baichuan13b", test::sized("baichuan", R"("intermediate_size":48,"model_max_length":64,)")},
          {"bloom", R"({"model_type":"bloom","vocab_size":96,"hidden_size":32,"n_layer":2,"n_head":4})"}};
}
class OtherStepOnRanks : public ::testing::TestWithParam<Family> {};

TEST_P(OtherStepOnRanks, EveryOutputIsThatOfOneDevice) {
  expect_as_on_one_device(RecordedStep(GetParam().config, at::kFloat), {presets()[7], presets()[9]});
}
TEST_P(OtherStepOnRanks, DISABLED_EveryOutputIsThatOfOneDeviceOnAnyMesh) {
  const RecordedStep step(GetParam().config, at::kFloat);
  expect_as_on_one_device(step, presets());
  expect_as_on_one_device(step, rare_presets());
}
INSTANTIATE_TEST_SUITE_P(Families, OtherStepOnRanks, ::testing::ValuesIn(other_families()),
                         [](const auto& info) { return info.param.name; });

TEST(StepOnRanks, RareMeshesMeanTheSame) {
  expect_as_on_one_device(RecordedStep(grouped("llama"), at::kFloat), rare_presets());
}
TEST_P(StepOnRanks, DISABLED_EveryOutputIsThatOfOneDeviceOnRareMeshes) {
  expect_as_on_one_device(RecordedStep(GetParam().config, at::kFloat), rare_presets());
}

// Updates that know more than one element of their parameter: the norm of all gradients, differences of successive
// ones.
TEST(StepOnRanks, UpdateRulesMeanTheSame) {
  for (const auto rule : {RecordedStep::Rule::kAgd, RecordedStep::Rule::kWsam})
    expect_as_on_one_device(RecordedStep(grouped("llama"), at::kFloat, 1, rule), {presets()[4], presets()[7]});
}

TEST(StepOnRanks, MicroBatchesAreSplitEach) {
  const RecordedStep step(grouped("llama"), at::kFloat, 2);
  const Graph graph = core_of(step);
  const size_t parameters = 21;
  EXPECT_EQ(sent_by(graph, presets()[1]).at({"reduce_scatter", "dp_shard"}).count, parameters) << "once a step";
  EXPECT_EQ(sent_by(graph, presets()[2]).at({"reduce_scatter", "dp_shard"}).count, 2 * parameters) << "each";
  EXPECT_EQ(sent_by(graph, presets()[3]).at({"reduce_scatter", "dp_shard"}).count, 2 * parameters);
  EXPECT_EQ(sent_by(graph, presets()[3]).at({"all_gather", "dp_shard"}).count, 2 * (2 * parameters - 1));
  const Sent tp = sent_by(graph, presets()[5]);
  EXPECT_EQ(tp.at({"all_gather", "tp"}).count, 2 * (6 * 2 + 2)) << "6 a layer and micro-batch";
  EXPECT_EQ(sent_by(graph, rare_presets()[1]).at({"all_gather", "tp"}).count, 2 * (4 * 2 + 1)) << "4 where kept";
  const Sent kept = sent_by(graph, rare_presets()[0]);
  EXPECT_EQ(kept.at({"all_gather", "dp_shard"}).count, parameters) << "for all micro-batches";
  EXPECT_EQ(kept.at({"reduce_scatter", "dp_shard"}).count, parameters) << "once a step";
  expect_as_on_one_device(
      step, {presets()[0], presets()[1], presets()[2], presets()[3], presets()[7], presets()[8], rare_presets()[3]});
}

// Four heads, one on each rank along tp: none is left for cp to split.
TEST(StepOnRanks, HeadsThatCannotBeSplitAreNamed) {
  const RecordedStep step(gpt2("0.0"), at::kFloat);
  const auto by_heads = [](const std::string& mesh) { return Preset{"", mesh, 0, true, {}, Context::kHeads}; };
  const Graph graph = core_of(step);
  EXPECT_USER_ERROR(local_of(graph, by_heads("cp=2,tp=4")),
                    "there are 1 on a rank along tp, which cp = 2 does not divide");
  EXPECT_USER_ERROR(local_of(graph, by_heads("cp=3")),
                    "there are 4, which cp = 3 does not divide: take a cp of 2 or 4, or");
  expect_as_on_one_device(step, {by_heads("cp=2,tp=2")});
}

// ---- what is sent, by the closed formulas of the presets

// A Llama of L layers, in f32; T tokens of S a sequence; each of n ranks sends (n-1)/n of what it gathers.
TEST(StepOnRanks, SendsWhatTheFormulasSay) {
  const Graph graph = core_of(RecordedStep(grouped("llama"), at::kFloat));
  constexpr double kLayers = 2, kTokens = 64, kWidth = 32, kKeys = 16, kClasses = 96, kFloat = 4, kHalf = 0.5;
  double parameters = 0;
  size_t count = 0, norms = 0;
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != InputKind::kParameter) continue;
    parameters += static_cast<double>(bytes_of(graph.type(input.tensor)));
    ++count;
    norms += graph.shape(input.tensor).size() == 1 ? 1 : 0;
  }
  const double table = kClasses * kWidth * kFloat;
  const double activation = kTokens * kWidth * kFloat;
  const double keys = kTokens * kKeys * kFloat;
  struct Expected {
    std::string op, axes;
    double bytes;
    size_t count;
  };
  const auto expect = [&](const Preset& preset, const std::vector<Expected>& all) {
    SCOPED_TRACE(preset.name);
    const Sent sent = sent_by(graph, preset);
    for (const Expected& one : all) {
      SCOPED_TRACE(one.op + " " + one.axes);
      const auto found = sent.find({one.op, one.axes});
      ASSERT_NE(found, sent.end());
      EXPECT_NEAR(found->second.bytes, one.bytes, one.bytes / 100);
      EXPECT_EQ(found->second.count, one.count);
    }
    EXPECT_EQ(sent.size(), all.size());
  };
  // Beside the gradients: the loss, how many tokens it counts, whether two kinds of indices are in range, and, where no
  // rank has whole gradients, their norm.
  const double numbers = 2 * kFloat + 2;
  expect(presets()[0], {{"all_reduce", "dp_replicate", 2 * kHalf * (parameters + numbers), count + 4}});
  for (size_t zero : {1, 2})
    expect(presets()[zero], {{"reduce_scatter", "dp_shard", kHalf * parameters, count},
                             {"all_gather", "dp_shard", kHalf * parameters, count},
                             {"all_reduce", "dp_shard", 2 * kHalf * (numbers + kFloat), 5}});
  // The backward pass looks nothing up.
  const double gathered = 2 * parameters - table;
  expect(presets()[3], {{"reduce_scatter", "dp_shard", kHalf * parameters, count},
                        {"all_gather", "dp_shard", kHalf * gathered, 2 * count - 1},
                        {"all_reduce", "dp_shard", 2 * kHalf * (numbers + kFloat), 5}});
  expect(presets()[4], {{"reduce_scatter", "dp_shard", kHalf * parameters, count},
                        {"all_gather", "dp_shard", kHalf * gathered, 2 * count - 1},
                        {"all_reduce", "dp_replicate", 2 * kHalf * kHalf * parameters, count},
                        {"all_reduce", "dp_replicate+dp_shard", 2 * 0.75 * numbers, 4},
                        {"all_reduce", "dp_shard", 2 * kHalf * kFloat, 1}});
  // Each layer gathers in front of its two blocks, forward, and again and behind them, backward. Outside: the logits'
  // operand, twice; what is looked up, the logits' gradient, and the table's. Along the classes of each token: the
  // largest logit, the sum, the label's. Of each norm's weight, and of the norm of all, what the ranks' tokens add.
  expect(
      presets()[5],
      {{"all_gather", "tp", kHalf * (6 * kLayers + 2) * activation, static_cast<size_t>(6 * kLayers) + 2},
       {"reduce_scatter", "tp", kHalf * ((4 * kLayers + 2) * activation + table), static_cast<size_t>(4 * kLayers) + 3},
       {"all_reduce", "tp", 2 * kHalf * kFloat * (3 * kTokens + static_cast<double>(norms) * kWidth + 1),
        3 + norms + 1}});
  expect(presets()[6], {{"all_reduce", "tp", 2 * kHalf * ((4 * kLayers + 2) * activation + kFloat * (3 * kTokens + 1)),
                         static_cast<size_t>(4 * kLayers) + 2 + 3 + 1}});
  // Where a budget has room for what is gathered, once is enough.
  expect(rare_presets()[0], {{"reduce_scatter", "dp_shard", kHalf * parameters, count},
                             {"all_gather", "dp_shard", kHalf * parameters, count},
                             {"all_reduce", "dp_shard", 2 * kHalf * (numbers + kFloat), 5}});
  expect(
      rare_presets()[1],
      {{"all_gather", "tp", kHalf * (4 * kLayers + 1) * activation, static_cast<size_t>(4 * kLayers) + 1},
       {"reduce_scatter", "tp", kHalf * ((4 * kLayers + 2) * activation + table), static_cast<size_t>(4 * kLayers) + 3},
       {"all_reduce", "tp", 2 * kHalf * kFloat * (3 * kTokens + static_cast<double>(norms) * kWidth + 1),
        3 + norms + 1}});
  expect(rare_presets()[2], {{"all_gather", "cp", kHalf * 2 * kLayers * keys, static_cast<size_t>(2 * kLayers)},
                             {"reduce_scatter", "cp", kHalf * 2 * kLayers * keys, static_cast<size_t>(2 * kLayers)},
                             {"all_reduce", "cp", 2 * kHalf * (parameters + kFloat), count + 1}});
  // By heads queries, keys, values and what attention makes of them change places, and so do their gradients, those of
  // keys and values once a query head. Of each a rank has 1/n, and sends all of that but its own part.
  expect(rare_presets()[13], {{"all_to_all", "cp", kHalf * kHalf * kLayers * (6 * activation + 2 * keys), 8 * 2},
                              {"all_reduce", "cp", 2 * kHalf * (parameters + kFloat), count + 1}});
  // Around a ring keys and values go to each other rank, forward and backward, and their gradients home, those once a
  // query head, of which there are two a key head.
  expect(rare_presets()[15], {{"rotate", "cp", kHalf * (4 + 2 * 2) * kLayers * keys, static_cast<size_t>(6 * kLayers)},
                              {"all_reduce", "cp", 2 * kHalf * (parameters + kFloat), count + 1}});
  // Keys and values are gathered, forward and backward, and their gradients go back.
  expect(presets()[8], {{"all_gather", "cp", kHalf * 4 * kLayers * keys, static_cast<size_t>(4 * kLayers)},
                        {"reduce_scatter", "cp", kHalf * 2 * kLayers * keys, static_cast<size_t>(2 * kLayers)},
                        {"all_reduce", "cp", 2 * kHalf * (parameters + kFloat), count + 1}});
}

}  // namespace
}  // namespace stepc
