// A decoder's micro-batches and update, cut into the stages of a pipeline: the functions, called as a program says,
// make the numbers of the step in one piece, bit by bit.
#include <map>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"
#include "passes/stages/cut_stages.h"
#include "passes/stages/recompute_stages.h"
#include "plan/stages/stage_program.h"
#include "tests/expect_user_error.h"
#include "tests/step_graph/recorded_step.h"

namespace stepc {
namespace {

using Key = std::pair<InputKind, std::string>;
using State = std::map<Key, Array>;

// A micro-batch that adds to held gradients, and an update that clips them.
class RecordedParts : private RecordedProgram {
 public:
  explicit RecordedParts(const std::string& config) {
    at::manual_seed(1);
    models::Decoder model(models::DecoderConfig::from_json(config), at::TensorOptions(at::kDouble));
    model->initialize(3);
    for (auto& item : model->named_parameters()) parameters_.emplace_back(item.key(), item.value());
    optim::AdamWOptions options;
    options.lr = 1e-3;
    const auto optimizer = std::make_shared<optim::AdamW>(parameters_, options);
    for (const auto& [key, tensor] : parameters_) owned_.push_back({Owner::kParameter, key, tensor});
    for (const auto& [key, tensor] : optimizer->named_state()) owned_.push_back({Owner::kOptimizerState, key, tensor});
    std::vector<at::Tensor> tensors;
    for (const auto& [key, tensor] : parameters_) {
      tensors.push_back(tensor);
      tensor.mutable_grad() = at::zeros_like(tensor);
    }
    for (const OwnedTensor& owned : list()) state[{kind_of(owned.owner), owned.key}] = test::array_of(owned.tensor);
    update = core_of([&] {
      const at::Tensor norm = optim::clip_grad_norm_(tensors, 1.0);
      optimizer->step();
      const at::NoGradGuard no_grad;
      for (const at::Tensor& tensor : tensors) tensor.grad().zero_();
      return StepOutput{{norm}, {}};
    });
    const at::Tensor rows = at::randint(0, 96, {4, 17}, at::kLong);
    owned_.push_back({Owner::kBatch, "0", rows});
    micro_batch = core_of([&] {
      const at::Tensor loss = model->loss(rows.slice(1, 0, 16), rows.slice(1, 1, 17));
      loss.backward();
      return StepOutput{{loss.detach()}, {}};
    });
  }

  State state;
  Graph micro_batch, update;

 private:
  Graph core_of(const std::function<StepOutput()>& step) {
    step();
    RunOptions passes;
    passes.without = {"recompute", "merge_collectives", "split_collectives", "fuse", "order"};
    return run_passes(functionalise(record(*this, step).trace), passes).graph;
  }
  std::vector<OwnedTensor> list() override {
    std::vector<OwnedTensor> out = owned_;
    for (const auto& [key, tensor] : parameters_) out.push_back({Owner::kGradient, key, tensor.grad()});
    return out;
  }

  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<OwnedTensor> owned_;
};

// Runs the graph on the state, which it updates; what it returns.
std::vector<Array> run_graph(const Graph& graph, State& state, const std::vector<Array>& batch) {
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs)
    inputs.push_back(input.kind == InputKind::kBatch ? batch.at(std::stoul(input.key))
                                                     : state.at({input.kind, input.key}));
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

// All ranks of a program, each with a state of its own, through slots and messages; by rank what its functions return.
std::vector<std::map<std::pair<uint32_t, int64_t>, Array>> run_program(const StageCut& cut, const StageProgram& program,
                                                                       std::vector<State>& states,
                                                                       const std::vector<std::vector<Array>>& batches) {
  const size_t ranks = program.calls.size();
  std::vector<std::map<std::pair<uint32_t, int64_t>, Array>> returned(ranks);
  std::vector<std::vector<std::optional<Array>>> slots;
  for (const uint32_t count : program.slots) slots.emplace_back(count);
  std::map<std::pair<size_t, uint32_t>, std::vector<Array>> on_their_way;  // by receiver and message
  std::vector<size_t> at(ranks);
  const auto can_run = [&](size_t rank) {
    const StageCall& call = program.calls[rank][at[rank]];
    if (call.kind == StageCall::Kind::kSend)
      for (const SlotValue& one : call.reads)
        on_their_way[{static_cast<size_t>(call.peer), call.message}].push_back(*slots[rank][one.slot]);
    if (call.kind == StageCall::Kind::kReceive) {
      const auto message = on_their_way.find({rank, call.message});
      if (message == on_their_way.end()) return false;
      for (size_t i = 0; i < call.writes.size(); ++i) slots[rank][call.writes[i].slot] = message->second.at(i);
    }
    if (call.kind == StageCall::Kind::kRun) {
      const StageFunction& function = cut.functions[call.function];
      std::vector<Array> batch = batches[static_cast<size_t>(call.micro_batch)];
      batch.resize(cut.batch);
      for (const SlotValue& one : call.reads) batch.push_back(*slots[rank][one.slot]);
      const std::vector<Array> made = run_graph(function.graph, states[rank], batch);
      for (size_t r = 0; r < function.returns.size(); ++r)
        returned[rank][{function.returns[r], call.micro_batch}] = made[r];
      for (size_t g = 0; g < function.gives.size(); ++g)
        slots[rank][call.writes[g].slot] = made[function.returns.size() + g];
    }
    for (const uint32_t slot : call.frees) slots[rank][slot].reset();
    return true;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < ranks; ++rank)
      while (at[rank] < program.calls[rank].size() && can_run(rank)) ++at[rank], moves = true;
  }
  for (size_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(at[rank], program.calls[rank].size());
  return returned;
}

std::string layered(const std::string& ties) {
  return R"({"model_type":"llama","vocab_size":96,"hidden_size":16,"num_hidden_layers":5,"num_attention_heads":2,)"
         R"("intermediate_size":24,"num_key_value_heads":1,"max_position_embeddings":64,"tie_word_embeddings":)" +
         ties + "}";
}

Array sum_of(const Array& a, const Array& b) {
  Array sum = a;
  for (int64_t i = 0; i < sum.count(); ++i) sum.set(i, a.real(i) + b.real(i));
  return sum;
}

// With as much recomputed in the backward passes of its stages as there is.
Graph all_recomputed(const Graph& micro_batch, const std::vector<std::string>& begins) {
  RecomputeOptions options;
  options.budget_bytes = 0;
  RecomputeResult result = recompute_stages(micro_batch, place_nodes(micro_batch, begins), options);
  EXPECT_GT(result.nodes, 0U);
  EXPECT_LT(result.peak_after, result.peak_before);
  return std::move(result.graph);
}

// Micro-batches and an update in `stages`, beside the whole graphs; `is_exact`: bit by bit.
void expect_same(const RecordedParts& step, int64_t stages, const std::string& name, bool is_exact,
                 bool recomputes = false) {
  SCOPED_TRACE(str("{} stages, {}{}", stages, name, recomputes ? ", recomputed" : ""));
  const int64_t micro_batches = stages + 1;
  const bool is_v = chunks_of(name) == 2;
  const int64_t ranks = is_v ? stages / 2 : stages;
  std::vector<std::vector<Array>> batches;
  for (int64_t m = 0; m < micro_batches; ++m)
    batches.push_back({test::array_of(at::randint(0, 96, {4, 17}, at::kLong))});
  State whole = step.state;
  std::vector<Array> losses;
  for (const auto& batch : batches) losses.push_back(run_graph(step.micro_batch, whole, batch).at(0));
  const Array norm = run_graph(step.update, whole, {}).at(0);

  const std::vector<std::string> begins = balanced_stages(step.micro_batch, stages);
  const Graph micro_batch = recomputes ? all_recomputed(step.micro_batch, begins) : step.micro_batch;
  const StagePlaces places = place_nodes(micro_batch, begins);
  const StageOrder order = stage_order(name, ranks, micro_batches);
  const StageCut cut = cut_micro_batch(micro_batch, places, order.splits_backward());
  const StageProgram program = make_program(cut, order);
  verify(program);
  for (const StageFunction& function : cut.functions) verify(function.graph);
  std::vector<State> states(static_cast<size_t>(ranks), step.state);
  const auto returned = run_program(cut, program, states, batches);
  for (int64_t m = 0; m < micro_batches; ++m)
    EXPECT_TRUE(
        same_bits(returned[static_cast<size_t>(order.rank_of(stages - 1))].at({0, m}), losses[static_cast<size_t>(m)]));
  std::map<std::string, std::vector<int64_t>> holders;  // ranks
  size_t shared = 0;
  for (const auto& [key, of] : places.of_parameter) {
    std::set<int64_t> on;
    for (const int64_t stage : of) on.insert(order.rank_of(stage));
    holders[key] = {on.begin(), on.end()};
    if (on.size() == 1) continue;
    ++shared;
    ASSERT_EQ(of, (std::vector<int64_t>{0, stages - 1}));
    Array& first = states.front().at({InputKind::kGradient, key});
    first = states.back().at({InputKind::kGradient, key}) =
        sum_of(first, states.back().at({InputKind::kGradient, key}));
  }
  EXPECT_EQ(shared, is_exact || is_v ? 0U : 1U);

  const StageCut update = cut_update(step.update, ranks, holders);
  const StageProgram calls = make_program(update, ranks);
  verify(calls);
  const auto results = run_program(update, calls, states, {{}});
  const auto expect_near = [&](const Array& got, const Array& right, const std::string& what) {
    if (is_exact)
      EXPECT_TRUE(same_bits(got, right)) << what;
    else
      EXPECT_LE(largest_error(got, right), 1e-12) << what;
  };
  for (const auto& of_rank : results) expect_near(of_rank.at({0, 0}), norm, "norm");
  size_t compared = 0;
  for (const auto& [key, right] : whole) {
    const auto* of = holders_of(key.first, key.second, holders);
    for (int64_t s = 0; s < ranks; ++s) {
      if (of != nullptr && std::ranges::find(*of, s) == of->end()) continue;
      expect_near(states[static_cast<size_t>(s)].at(key), right, key.second);
      ++compared;
    }
  }
  EXPECT_GE(compared, whole.size());
}

TEST(Stages, FunctionsMakeTheWholeStep) {
  const RecordedParts step(layered("false"));
  expect_same(step, 1, "gpipe", true);
  expect_same(step, 2, "gpipe", true);
  expect_same(step, 2, "1f1b", true);
  expect_same(step, 4, "1f1b", true);
  expect_same(step, 2, "zb-h1", true);
  expect_same(step, 4, "zb-h1", true);
  expect_same(step, 4, "zb-v", true);
  expect_same(step, 4, "dualpipe-v", true);
  const RecordedParts tied(layered("true"));
  expect_same(tied, 3, "1f1b", false);
  expect_same(tied, 3, "zb-h1", false);
  expect_same(tied, 4, "zb-v", false);
  // The residual stream's gradient is the later stages' and the own ones' sum. Its sum over rows is no sum of stages.
  const RecordedParts positions(
      R"({"model_type":"gpt2","vocab_size":96,"n_embd":16,"n_layer":4,"n_head":2,"n_positions":512,)"
      R"("embd_pdrop":0.0,"attn_pdrop":0.0,"resid_pdrop":0.0,"tie_word_embeddings":false})");
  expect_same(positions, 2, "1f1b", true);
  expect_same(positions, 4, "zb-h1", true);
}

size_t crossings(const StageCut& cut) {
  size_t crossing = 0;
  for (const StageValue& value : cut.values) {
    std::set<int64_t> stages;
    for (const uint32_t user : value.users) stages.insert(cut.functions[user].stage);
    stages.erase(cut.functions[value.maker].stage);
    crossing += stages.size();
    if (!stages.empty()) {
      EXPECT_EQ(element_count(value.type.shape), 4 * 16 * 16) << "the residual stream, or its gradient";
    }
  }
  return crossing;
}

TEST(Stages, OnlyLiveValuesCross) {
  const RecordedParts step(layered("false"));
  EXPECT_EQ(
      crossings(cut_micro_batch(step.micro_batch, place_nodes(step.micro_batch, balanced_stages(step.micro_batch, 4)))),
      3U + 3U);
}

// Bit by bit, and no more is sent; less lies between a stage's passes.
TEST(Stages, RecomputeInTheirOwnBackwardPass) {
  const RecordedParts step(layered("false"));
  expect_same(step, 2, "1f1b", true, /*recomputes=*/true);
  expect_same(step, 4, "zb-h1", true, /*recomputes=*/true);
  const std::vector<std::string> begins = balanced_stages(step.micro_batch, 4);
  const Graph recomputed = all_recomputed(step.micro_batch, begins);
  const StageCut cut = cut_micro_batch(recomputed, place_nodes(recomputed, begins));
  EXPECT_EQ(crossings(cut), 3U + 3U);
  const auto bytes_between = [](const StageCut& one) {
    uint64_t bytes = 0;
    for (const StageValue& value : one.values) bytes += bytes_of(value.type);
    return bytes;
  };
  EXPECT_LT(2 * bytes_between(cut),
            bytes_between(cut_micro_batch(step.micro_batch, place_nodes(step.micro_batch, begins))));
}

TEST(Stages, BeginWhereTheyAreTold) {
  const RecordedParts step(layered("false"));
  const StagePlaces places = place_nodes(step.micro_batch, {"layers.0", "layers.1", "model.layers.4"});
  EXPECT_EQ(places.of_parameter.at("model.embed_tokens.weight"), std::vector<int64_t>{0});
  EXPECT_EQ(places.of_parameter.at("model.layers.1.mlp.up_proj.weight"), std::vector<int64_t>{1});
  EXPECT_EQ(places.of_parameter.at("model.layers.3.mlp.up_proj.weight"), std::vector<int64_t>{1});
  EXPECT_EQ(places.of_parameter.at("lm_head.weight"), std::vector<int64_t>{2});
  EXPECT_USER_ERROR(place_nodes(step.micro_batch, {"layers.0", "layer.1"}), "did you mean 'layers.1'?");
  EXPECT_USER_ERROR(place_nodes(step.micro_batch, {"layers.2", "layers.0"}),
                    "a stage begins with 'layers.0', which does not run after 'layers.2'");
  EXPECT_USER_ERROR(balanced_stages(step.micro_batch, 6), "6 stages, and the model has 5 layers");
}

}  // namespace
}  // namespace stepc
