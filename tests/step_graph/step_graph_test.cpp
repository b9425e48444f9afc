// Whole recorded training steps as Graphs: nothing stays opaque, the interpreter agrees with what eager PyTorch did
// (loss, gradient norm, every parameter and every optimizer state), and the passes keep that.
#include <set>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "capture/recorder.h"
#include "interp/interpret.h"
#include "models/decoder.h"
#include "ops/op_def.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "passes/from_trace/functionalise.h"
#include "passes/pass.h"

namespace stepc {
namespace {

struct Family {
  std::string name, config;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }  // NOLINT: GoogleTest's name

const std::string kSizes =
    R"("vocab_size":96,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,"max_position_embeddings":64)";
std::string grouped(const std::string& type, const std::string& more = "") {
  return R"({"model_type":")" + type + R"(","intermediate_size":48,"num_key_value_heads":2,"rms_norm_eps":1e-5,)" +
         more + kSizes + "}";
}
std::string gpt2(const std::string& dropout) {
  return R"({"model_type":"gpt2","vocab_size":96,"n_embd":32,"n_layer":2,"n_head":4,"n_positions":64,"n_ctx":64,)"
         R"("embd_pdrop":)" +
         dropout + R"(,"attn_pdrop":)" + dropout + R"(,"resid_pdrop":)" + dropout + "}";
}

Array array_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  const std::map<at::ScalarType, DType> dtypes = {
      {at::kFloat, DType::kF32}, {at::kDouble, DType::kF64}, {at::kBFloat16, DType::kBF16}, {at::kLong, DType::kI64}};
  const auto* bytes = static_cast<const uint8_t*>(dense.const_data_ptr());
  return from_bytes({dtypes.at(dense.scalar_type()), dense.sizes().vec()}, {bytes, bytes + dense.nbytes()});
}

// A decoder with AdamW and clipping, one step recorded, and all that the step may touch before and after.
class RecordedStep : private RecordedProgram {
 public:
  RecordedStep(const std::string& config, at::ScalarType dtype) {
    at::manual_seed(1);
    const auto decoder = models::DecoderConfig::from_json(config);
    models::Decoder model(decoder, at::TensorOptions(dtype));
    model->initialize(3);
    for (auto& item : model->named_parameters()) parameters_.emplace_back(item.key(), item.value());
    optim::AdamWOptions options;
    options.lr = 1e-3;
    options.weight_decay = 0.1;
    optim::AdamW optimizer(parameters_, options);
    for (const auto& [key, tensor] : parameters_) owned_.push_back({Owner::kParameter, key, tensor});
    for (const auto& [key, tensor] : optimizer.named_state()) owned_.push_back({Owner::kOptimizerState, key, tensor});
    const at::Tensor batch = at::randint(0, 96, {2, 17}, at::kLong);
    owned_.push_back({Owner::kBatch, "0", batch});

    std::vector<at::Tensor> tensors;
    for (const auto& [key, tensor] : parameters_) tensors.push_back(tensor);
    const auto step = [&] {
      at::Tensor loss = model->loss(batch.slice(1, 0, 16), batch.slice(1, 1, 17));
      loss.backward();
      at::Tensor norm = optim::clip_grad_norm_(tensors, 1.0);
      optimizer.step();
      optimizer.zero_grad();
      return StepOutput{{loss, norm}, {}};
    };
    step();
    before = state();
    Recording recording = record(*this, step);
    after = state();
    for (const std::string& obstacle : recording.obstacles) ADD_FAILURE() << obstacle;
    for (const at::Tensor& output : recording.output.tensors) returned.push_back(array_of(output));
    trace = std::move(recording.trace);
  }

  std::map<std::pair<InputKind, std::string>, Array> before, after;
  std::vector<Array> returned;
  Trace trace;

 private:
  std::vector<OwnedTensor> list() override {
    std::vector<OwnedTensor> out = owned_;
    for (const auto& [key, tensor] : parameters_) out.push_back({Owner::kGradient, key, tensor.grad()});
    return out;
  }
  std::map<std::pair<InputKind, std::string>, Array> state() const {
    const std::map<Owner, InputKind> kinds = {{Owner::kParameter, InputKind::kParameter},
                                              {Owner::kOptimizerState, InputKind::kOptimizerState},
                                              {Owner::kBatch, InputKind::kBatch}};
    std::map<std::pair<InputKind, std::string>, Array> out;
    for (const OwnedTensor& owned : owned_) out[{kinds.at(owned.owner), owned.key}] = array_of(owned.tensor);
    return out;
  }

  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<OwnedTensor> owned_;
};

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
  options.without = {"decompose", "recompute", "fuse", "order"};
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
