// Opaque ATen calls on virtual ranks: each of the calls that have a rule, and whole steps of convolutional networks.
#include "ops/rules/aten_rules.h"

#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/upsampling.h>

#include "capture/recorder.h"
#include "ops/graph_builder.h"
#include "ops/rules/sharding_rule.h"
#include "passes/from_trace/functionalise.h"
#include "tests/passes/run_partitioned.h"
#include "tests/step_graph/aten_calls.h"

namespace stepc {
namespace {

// ---- one call

// Types of the operands, and the call: three rows, and three channels where these may be split.
struct RuledCall {
  std::string operands, call;
};
const std::vector<RuledCall>& ruled_calls() {
  const std::string line = "f64[3, 3, 8]", plane = "f64[3, 3, 8, 8]", box = "f64[3, 3, 8, 8, 8]";
  const std::string half_line = "f64[3, 3, 4]", half = "f64[3, 3, 4, 4]", half_box = "f64[3, 3, 4, 4, 4]";
  const std::string wide_line = "f64[3, 3, 12]", wide = "f64[3, 3, 12, 12]", twice = "f64[3, 3, 16, 16]";
  const std::string chosen = "; i64[3, 3, 4, 4]", chosen_box = "; i64[3, 3, 4, 4, 4]";
  const std::string small = half + "; " + plane, small_box = half_box + "; " + box;
  static const std::vector<RuledCall> kCalls = {
      {"f64[3, 4, 8, 8]; f64[5, 4, 3, 3]; f64[5]", "convolution(%0, %1, %2, [2, 1], [1, 1], [1, 1], false, [0, 0], 1)"},
      {"f64[3, 4, 8]; f64[6, 2, 3]", "convolution(%0, %1, none, [1], [1], [1], false, [0], 2)"},
      {"f64[3, 4, 8, 8]; f64[4, 5, 2, 2]; f64[5]", "convolution(%0, %1, %2, [2, 2], [0, 0], [1, 1], true, [0, 0], 1)"},
      {"f64[3, 5, 8, 8]; f64[3, 4, 8, 8]; f64[5, 4, 3, 3]",
       "convolution_backward(%0, %1, %2, [5], [1, 1], [1, 1], [1, 1], false, [0, 0], 1, b[true, true, true])"},
      {"f64[3, 5, 8, 8]; f64[3, 4, 8, 8]; f64[5, 4, 3, 3]",
       "convolution_backward(%0, %1, %2, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1, b[false, true, false])"},
      {"f64[3, 4, 8, 8]; f64[4]; f64[4]", "native_group_norm(%0, %1, %2, 3, 4, 64, 2, 1e-05)"},
      {"f64[3, 4, 8, 8]", "native_group_norm(%0, none, none, 3, 4, 64, 2, 1e-05)"},
      {"f64[3, 4, 8, 8]; f64[3, 4, 8, 8]; f64[3, 2]; f64[3, 2]; f64[4]",
       "native_group_norm_backward(%0, %1, %2, %3, %4, 3, 4, 64, 2, b[true, true, true])"},
      {"f64[3, 4, 8, 8]; f64[3, 4, 8, 8]; f64[3, 2]; f64[3, 2]",
       "native_group_norm_backward(%0, %1, %2, %3, none, 3, 4, 64, 2, b[true, false, false])"},
      {plane, "max_pool2d_with_indices(%0, [2, 2], [2, 2], [0, 0], [1, 1], false)"},
      {small + chosen, "max_pool2d_with_indices_backward(%0, %1, [2, 2], [2, 2], [0, 0], [1, 1], false, %2)"},
      {box, "max_pool3d_with_indices(%0, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], false)"},
      {small_box + chosen_box,
       "max_pool3d_with_indices_backward(%0, %1, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], false, %2)"},
      {plane, "adaptive_max_pool2d(%0, [4, 4])"},
      {small + chosen, "adaptive_max_pool2d_backward(%0, %1, %2)"},
      {box, "adaptive_max_pool3d(%0, [4, 4, 4])"},
      {small_box + chosen_box, "adaptive_max_pool3d_backward(%0, %1, %2)"},
      {plane, "avg_pool2d(%0, [2, 2], [2, 2], [0, 0], false, true, none)"},
      {small, "avg_pool2d_backward(%0, %1, [2, 2], [2, 2], [0, 0], false, true, none)"},
      {box, "avg_pool3d(%0, [2, 2, 2], [2, 2, 2], [0, 0, 0], false, true, none)"},
      {small_box, "avg_pool3d_backward(%0, %1, [2, 2, 2], [2, 2, 2], [0, 0, 0], false, true, none)"},
      {plane, "_adaptive_avg_pool2d(%0, [4, 4])"},
      {small, "_adaptive_avg_pool2d_backward(%0, %1)"},
      {box, "_adaptive_avg_pool3d(%0, [4, 4, 4])"},
      {small_box, "_adaptive_avg_pool3d_backward(%0, %1)"},
      {half_line, "upsample_nearest1d(%0, [8], none)"},
      {line, "upsample_nearest1d_backward(%0, [8], [3, 3, 4], none)"},
      {plane, "upsample_nearest2d(%0, [16, 16], none, 2.0)"},
      {twice, "upsample_nearest2d_backward(%0, [16, 16], [3, 3, 8, 8], none, 2.0)"},
      {half_box, "upsample_nearest3d(%0, [8, 8, 8], none, none, none)"},
      {box, "upsample_nearest3d_backward(%0, [8, 8, 8], [3, 3, 4, 4, 4], none, none, none)"},
      {half_line, "upsample_linear1d(%0, [8], false, none)"},
      {line, "upsample_linear1d_backward(%0, [8], [3, 3, 4], false, none)"},
      {plane, "upsample_bilinear2d(%0, [16, 16], true, none, none)"},
      {twice, "upsample_bilinear2d_backward(%0, [16, 16], [3, 3, 8, 8], true, none, none)"},
      {plane, "upsample_bicubic2d(%0, [16, 16], false, none, none)"},
      {twice, "upsample_bicubic2d_backward(%0, [16, 16], [3, 3, 8, 8], false, none, none)"},
      {half_box, "upsample_trilinear3d(%0, [8, 8, 8], false, none, none, none)"},
      {box, "upsample_trilinear3d_backward(%0, [8, 8, 8], [3, 3, 4, 4, 4], false, none, none, none)"},
      {line, "reflection_pad1d(%0, [2, 2])"},
      {wide_line + "; " + line, "reflection_pad1d_backward(%0, %1, [2, 2])"},
      {plane, "reflection_pad2d(%0, [2, 2, 2, 2])"},
      {wide + "; " + plane, "reflection_pad2d_backward(%0, %1, [2, 2, 2, 2])"},
      {line, "replication_pad1d(%0, [2, 2])"},
      {wide_line + "; " + line, "replication_pad1d_backward(%0, %1, [2, 2])"},
      {plane, "replication_pad2d(%0, [2, 2, 2, 2])"},
      {wide + "; " + plane, "replication_pad2d_backward(%0, %1, [2, 2, 2, 2])"},
      {line, "cummax(%0, 1)"},
      {line, "cummin(%0, -1)"},
      {line, "sort(%0, 1, true)"},
      {line, "sort.stable(%0, true, -1, false)"},
      {line, "topk(%0, 2, -1, true, true)"},
  };
  return kCalls;
}

Array random_array(const TensorType& type) {
  Array array(type);
  for (int64_t i = 0; i < array.count(); ++i) {
    if (array.is_real())
      array.set(i, at::randn({}, at::kDouble).item<double>());
    else
      array.set(i, at::randint(0, 4, {}, at::kLong).item<int64_t>());
  }
  return array;
}

// The call as a Graph whose batch is its operands, and its results what the step returns.
Graph graph_of(const RuledCall& one, std::vector<Array>& operands) {
  std::string text = "stepc.graph 1\n";
  size_t count = 0;
  for (const std::string& type : split(one.operands, ';'))
    text += str("input %{}: {} = batch \"{}\"\n", count, type.substr(type.find_first_not_of(' ')), count), ++count;
  Graph graph = parse_graph(text + str("%{}: f64[] = aten::{} -> % | forward \"\"\n", count, one.call));
  Node node = graph.nodes[0];
  std::vector<at::Tensor> given;
  for (const GraphInput& input : graph.inputs) {
    operands.push_back(random_array(graph.type(input.tensor)));
    given.push_back(test::tensor_of(operands.back()));
  }
  std::vector<TensorType> types;
  node.aten->results.clear();
  for (const at::Tensor& made : test::call_aten(node.op, node.aten->args, given)) {
    if (!made.defined()) {
      node.aten->results.emplace_back(std::monostate());
      continue;
    }
    node.aten->results.emplace_back(ValueId(types.size()));
    types.push_back({dtype_of(made.scalar_type()), made.sizes().vec()});
  }
  GraphBuilder b(parse_graph(text));
  for (TensorId result : b.add_aten(std::move(node), types)) {
    GraphOutput output;
    output.tensor = result;
    b.graph().outputs.push_back(std::move(output));
  }
  return b.take();
}

TEST(AtenRules, EveryCallIsTheWholeOneInParts) {
  std::set<std::string> seen;
  for (const RuledCall& one : ruled_calls()) {
    SCOPED_TRACE(one.call);
    at::manual_seed(1);
    std::vector<Array> operands;
    const Graph graph = graph_of(one, operands);
    verify_ops(graph);
    seen.insert(graph.nodes[0].op);
    const ShardingRule rule = sharding_rule_of(graph, graph.nodes[0]);
    ASSERT_FALSE(rule.factors.empty());
    for (int factor = 0; factor < static_cast<int>(rule.factors.size()); ++factor)
      for (const char* ranks : {"dp_shard=3", "dp_shard=2"}) {  // evenly, and with a row of padding
        SCOPED_TRACE(str("factor {} of {}, {}", factor, to_text(rule), ranks));
        const Mesh mesh = parse_mesh(ranks);
        std::vector<Sharding> shardings;
        for (size_t i = 0; i < graph.inputs.size(); ++i) {
          const Shape& shape = graph.shape(graph.inputs[i].tensor);
          shardings.push_back(Sharding::whole(shape.size()));
          for (size_t d = 0; d < shape.size(); ++d)
            if (rule.operands[i][d] == std::vector<int>{factor}) shardings[i].dims[d] = {{shape[d], {0}}};
        }
        const Graph local = partition(propagate_shardings(graph, mesh, shardings).graph);
        verify_ops(local);
        const auto call = std::ranges::find(local.nodes, graph.nodes[0].op, &Node::op);
        ASSERT_NE(call, local.nodes.end());
        EXPECT_LT(element_count(local.shape(call->inputs[0])), element_count(graph.shape(graph.nodes[0].inputs[0])));
        test::largest_error_on_ranks(graph, local, operands, test::run_aten_node);
      }
  }
  for (const AtenRule& rule : aten_rules()) EXPECT_TRUE(seen.contains(std::string(rule.op))) << rule.op;
}

// ---- whole steps

// A model's training step on images and their classes, SGD with momentum, recorded in eager PyTorch.
class ImageStep : private RecordedProgram {
 public:
  ImageStep(torch::nn::Sequential model, int64_t rows, at::ScalarType dtype = at::kFloat) : model_(std::move(model)) {
    for (const at::Tensor& parameter : model_->parameters()) parameter.set_data(parameter.to(dtype));
    for (const at::Tensor& buffer : model_->buffers())
      if (buffer.is_floating_point()) buffer.set_data(buffer.to(dtype));

    for (auto& item : model_->named_parameters()) {
      parameters_.emplace_back(item.key(), item.value());
      momenta_.push_back(at::zeros_like(item.value()));
      owned_.push_back({Owner::kParameter, item.key(), item.value()});
      owned_.push_back({Owner::kOptimizerState, item.key() + ".momentum", momenta_.back()});
    }
    for (auto& item : model_->named_buffers()) owned_.push_back({Owner::kBuffer, item.key(), item.value()});
    const at::Tensor images = at::randn({rows, 3, 8, 8}).to(dtype), classes = at::randint(0, 5, {rows}, at::kLong);
    owned_.push_back({Owner::kBatch, "0", images});
    owned_.push_back({Owner::kBatch, "1", classes});
    const auto step = [&] {
      const at::Tensor loss = torch::nn::functional::cross_entropy(model_->forward(images), classes);
      loss.backward();
      const at::NoGradGuard no_grad;
      for (size_t p = 0; p < parameters_.size(); ++p) {
        at::Tensor& parameter = parameters_[p].second;
        if (!parameter.grad().defined()) continue;
        momenta_[p].mul_(0.9).add_(parameter.grad());
        parameter.add_(momenta_[p], -0.1);
        parameter.mutable_grad() = at::Tensor();
      }
      return StepOutput{{loss.detach()}, {}};
    };
    step();
    for (const OwnedTensor& owned : owned_)
      before[{kind_of(owned.owner), owned.key}] = in_double(test::array_of(owned.tensor));
    Recording recording = record(*this, step);
    for (const std::string& obstacle : recording.obstacles) ADD_FAILURE() << obstacle;
    recorded = functionalise(recording.trace);
    graph = in_double(recorded);
  }

  Graph recorded, graph;  // and in float64
  std::map<std::pair<InputKind, std::string>, Array> before;

 private:
  std::vector<OwnedTensor> list() override {
    std::vector<OwnedTensor> out = owned_;
    for (const auto& [key, tensor] : parameters_) out.push_back({Owner::kGradient, key, tensor.grad()});
    return out;
  }
  torch::nn::Sequential model_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<at::Tensor> momenta_;
  std::vector<OwnedTensor> owned_;
};

Graph passed(const Graph& graph, const Strategy& strategy) {
  RunOptions options;
  options.verify = true;
  options.settings.strategy = strategy;
  options.without = {"recompute", "fuse", "order"};
  return run_passes(graph, options).graph;
}

// Every output and update is that of one device; each convolution works on the rank's rows.
void expect_images_as_on_one_device(const torch::nn::Sequential& model, int64_t rows) {
  at::manual_seed(2);
  const ImageStep step(model, rows);
  const Graph graph = passed(step.graph, {});
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) {
    const auto known = step.before.find({input.kind, input.key});
    inputs.push_back(known != step.before.end() ? known->second : Array(graph.type(input.tensor)));
  }
  for (const char* mesh : {"dp_shard=2", "dp_replicate=2", "dp_replicate=2,dp_shard=2"}) {
    SCOPED_TRACE(str("{} rows on {}", rows, mesh));
    const Strategy strategy = {parse_mesh(mesh), 3};
    const Graph local = passed(step.graph, strategy);
    test::largest_error_on_ranks(graph, local, inputs, test::run_aten_node);
    const int64_t ranks = strategy.mesh.ranks();
    for (const Node& node : local.nodes) {
      if (!node.aten) continue;
      const Shape& shape = local.shape(node.inputs[0]);
      EXPECT_EQ(shape[0], (rows + ranks - 1) / ranks)
          << node.op << " works on a " << to_text(local.type(node.inputs[0]));
    }
  }
}

torch::nn::Sequential convolutional() {
  at::manual_seed(1);
  namespace nn = torch::nn;
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1)), nn::BatchNorm2d(4), nn::Functional(at::relu),
                        nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1).groups(2).bias(false)),
                        nn::BatchNorm2d(nn::BatchNorm2dOptions(6).affine(false)), nn::Functional(at::relu),
                        nn::Flatten(), nn::Linear(96, 5));
}
torch::nn::Sequential diffusing() {
  at::manual_seed(1);
  namespace nn = torch::nn;
  return nn::Sequential(
      nn::Conv2d(nn::Conv2dOptions(3, 4, 3).padding(1).stride(2)), nn::GroupNorm(nn::GroupNormOptions(2, 4)),
      nn::Functional(at::silu),
      nn::Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest)),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 2).stride(2)), nn::AvgPool2d(2), nn::BatchNorm2d(6),
      nn::Flatten(), nn::Linear(384, 5));
}

TEST(StepOfConvolutions, EveryOutputIsThatOfOneDevice) {
  expect_images_as_on_one_device(convolutional(), 4);
  expect_images_as_on_one_device(convolutional(), 5);
}
TEST(StepOfConvolutions, GroupsAreNormedAndImagesResizedByRows) {
  expect_images_as_on_one_device(diffusing(), 4);
  expect_images_as_on_one_device(diffusing(), 3);
}
// All in bfloat16: the pass runner holds types to each other, and what the ranks sum is float32.
TEST(StepOfConvolutions, NarrowImagesHaveWideStatistics) {
  const ImageStep step(convolutional(), 4, at::kBFloat16);
  const Graph local = passed(step.recorded, {parse_mesh("dp_shard=2"), 3});
  const bool sums_wide = std::ranges::any_of(local.nodes, [&](const Node& node) {
    return collective_of(node) != Collective::kNone && local.type(node.inputs[0]) == TensorType{DType::kF32, {4}};
  });
  EXPECT_TRUE(sums_wide);
}
TEST(StepOfConvolutions, FrozenStatisticsStayAsTheyAre) {
  torch::nn::Sequential model = convolutional();
  model->eval();
  expect_images_as_on_one_device(model, 4);
}

}  // namespace
}  // namespace stepc
