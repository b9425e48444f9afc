// A whole recorded step cut in time: what its micro-batches do one after the other, and the update of what they add up,
// make the step in one piece.
#include "passes/stages/cut_batch.h"

#include <map>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"
#include "tests/expect_user_error.h"
#include "tests/step_graph/recorded_step.h"

namespace stepc {
namespace {

using Key = std::pair<InputKind, std::string>;
using State = std::map<Key, Array>;

Graph rank_graph_of(const RunOptions& given, const Graph& graph) {
  RunOptions passes = given;
  passes.without = {"fuse_losses", "recompute", "merge_collectives", "split_collectives", "fuse", "order"};
  return run_passes(graph, passes).graph;
}

Array rows_of(const Array& whole, int64_t first, int64_t count) {
  TensorType type = whole.type;
  const int64_t row = whole.count() / type.shape[0];
  type.shape[0] = count;
  Array rows(type);
  for (int64_t i = 0; i < rows.count(); ++i) rows.set(i, whole.integer(first * row + i));
  return rows;
}

Array number_of(int64_t value) {
  Array number(TensorType{DType::kI64, {}});
  number.set(0, value);
  return number;
}

// Runs the graph; what it returns. Updates go into `state`.
std::vector<Array> run(const Graph& graph, State& state, const std::vector<Array>& batch) {
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) {
    const auto known = state.find({input.kind, input.key});
    inputs.push_back(input.kind == InputKind::kBatch ? batch.at(std::stoul(input.key))
                     : known != state.end()          ? known->second
                                                     : Array(graph.type(input.tensor)));
  }
  const std::vector<Array> outputs = interpret(graph, inputs);
  std::vector<Array> returned;
  for (size_t o = 0; o < outputs.size(); ++o) {
    const GraphOutput& output = graph.outputs[o];
    if (output.kind == GraphOutput::Kind::kReturn) returned.push_back(outputs[o]);
    if (output.kind == GraphOutput::Kind::kGuard) {
      EXPECT_EQ(outputs[o].integer(0), 1);
    }
    if (output.kind == GraphOutput::Kind::kUpdate)
      state[{graph.inputs[output.input].kind, graph.inputs[output.input].key}] = outputs[o];
  }
  return returned;
}

Array stacked(const std::vector<Array>& parts) {
  TensorType type = parts[0].type;
  type.shape.insert(type.shape.begin(), std::ssize(parts));
  Array all(type);
  for (size_t m = 0; m < parts.size(); ++m)
    for (int64_t i = 0; i < parts[m].count(); ++i)
      all.set(static_cast<int64_t>(m) * parts[m].count() + i, parts[m].real(i));
  return all;
}

BatchCut cut_of(const test::RecordedStep& step, int64_t micro_batches) {
  RunOptions passes;
  passes.settings.strategy.mesh = make_mesh({{std::string(kMicroBatchAxis), micro_batches}});
  return cut_batch(rank_graph_of(passes, functionalise(step.trace)));
}

void expect_as_in_one_piece(const std::string& config, int64_t micro_batches) {
  SCOPED_TRACE(str("{} micro-batches of {}", micro_batches, config));
  const test::RecordedStep step(config, at::kDouble);
  const Graph whole = rank_graph_of({}, functionalise(step.trace));
  State expected = step.before, got = step.before;
  const Array batch = step.before.at({InputKind::kBatch, "0"});
  const std::vector<Array> right = run(whole, expected, {batch});

  const BatchCut cut = cut_of(step, micro_batches);
  EXPECT_EQ(cut.micro_batches, micro_batches);
  ASSERT_EQ(cut.rows.size(), 1U);
  ASSERT_EQ(cut.rounds.size(), 1U);
  verify(cut.rounds[0].micro_batch);
  verify(cut.rounds[0].update);
  const int64_t rows = batch.type.shape[0] / micro_batches;
  std::vector<Array> early;
  const auto given = [&](int64_t m) {
    std::vector<Array> tensors = {rows_of(batch, m * rows, rows)};
    tensors.insert(tensors.end(), early.begin(), early.end());
    tensors.resize(1 + cut.before.size());
    tensors.push_back(number_of(m));
    return tensors;
  };
  for (const Graph& before : cut.before) {
    std::vector<Array> parts;
    for (int64_t m = 0; m < micro_batches; ++m) parts.push_back(run(before, got, given(m)).at(0));
    Array sum = parts[0];
    for (int64_t m = 1; m < micro_batches; ++m)
      for (int64_t i = 0; i < sum.count(); ++i) sum.set(i, sum.real(i) + parts[static_cast<size_t>(m)].real(i));
    early.push_back(sum);
  }
  std::vector<std::vector<Array>> returned;
  for (int64_t m = 0; m < micro_batches; ++m) {
    const std::vector<Array> of_one = run(cut.rounds[0].micro_batch, got, given(m));
    for (const Array& one : of_one) EXPECT_EQ(one.count(), 1) << "kept for each micro-batch until the update";
    returned.resize(of_one.size());
    for (size_t r = 0; r < of_one.size(); ++r) returned[r].push_back(of_one[r]);
  }
  std::vector<Array> tensors = {batch};
  tensors.insert(tensors.end(), early.begin(), early.end());
  for (const std::vector<Array>& parts : returned) tensors.push_back(stacked(parts));
  const std::vector<Array> made = run(cut.rounds[0].update, got, tensors);
  ASSERT_EQ(made.size(), right.size());
  ASSERT_EQ(cut.results.size(), right.size());
  for (size_t r = 0; r < right.size(); ++r) EXPECT_LE(largest_error(made[r], right[r]), 1e-12) << r;
  for (const auto& [key, value] : expected)
    if (value.count() > 0) {
      EXPECT_LE(largest_error(got.at(key), value), 1e-10) << key.second;
    }
}

TEST(CutBatch, MicroBatchesMakeTheStepInOnePiece) {
  expect_as_in_one_piece(test::grouped("llama"), 2);
  expect_as_in_one_piece(test::grouped("llama", R"("tie_word_embeddings":true,)"), 4);
  expect_as_in_one_piece(test::gpt2("0.1"), 2);  // with the masks of the whole batch
}

// However many there are, a micro-batch and the update are planned once.
TEST(CutBatch, DoesNotGrowWithMicroBatches) {
  const test::RecordedStep step(test::grouped("llama"), at::kFloat);
  const BatchCut two = cut_of(step, 2), four = cut_of(step, 4);
  EXPECT_EQ(two.rounds[0].micro_batch.nodes.size(), four.rounds[0].micro_batch.nodes.size());
  EXPECT_EQ(two.rounds[0].update.nodes.size(), four.rounds[0].update.nodes.size());
  EXPECT_EQ(two.rounds[0].sums, four.rounds[0].sums);
  EXPECT_USER_ERROR(cut_of(step, 3), "micro_batches = 3: batch '0' has 4 rows, which do not divide");
}

}  // namespace
}  // namespace stepc
