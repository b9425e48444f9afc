// Which tensors of a Graph need memory, on examples; and on random graphs, in planned orders, that nothing is written
// over while it is still read: every byte remembers which tensor it holds.
#include "memory/graph_memory.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "memory/order/list_order.h"
#include "memory/order/plan_order.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"

namespace stepc {
namespace {

GraphMemory memory_of(std::string_view text) {
  const Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  GraphMemory memory = graph_memory(graph);
  verify(memory.problem);
  return memory;
}
const OrderValue& value_of(const GraphMemory& memory, uint32_t tensor) {
  return memory.problem.values[memory.value_of[tensor]];
}

TEST(GraphMemory, ViewsShareAndInputsAreTheProgramsOwn) {
  const GraphMemory memory = memory_of(R"(input %0: f32[4, 8] = parameter "w"
%1: f32[4, 8] = neg(%0) | forward ""
%2: f32[32] = reshape(%1) {shape=[32]} | forward ""
%3: f32[32] = exp(%2) | forward ""
return %3
)");
  EXPECT_EQ(memory.problem.units.size(), 2U);
  EXPECT_EQ(memory.value_of[0], kNone);
  EXPECT_EQ(memory.value_of[2], memory.value_of[1]);
  EXPECT_EQ(memory.problem.units[1].reuses, (std::vector<Reuse>{{memory.value_of[1], memory.value_of[3]}}));
  EXPECT_TRUE(value_of(memory, 3).kept);
}

TEST(GraphMemory, AViewInsideAGroupIsNoResultOfIt) {
  const GraphMemory memory = memory_of(R"(input %0: f32[1, 1] = parameter "w"
%1: f32[1, 1] = neg(%0) | forward ""
%2: f32[] = reshape(%1) {shape=[]} | forward ""
%3: f32[] = exp(%2) | forward ""
%4: f32[] = reshape(%1) {shape=[]} | forward "" group 0
%5: f32[] = mul(%3, %4) | forward "" group 0
return %3
return %5
)");
  ASSERT_EQ(memory.problem.units.size(), 3U);
  const uint32_t made = memory.value_of[5];
  EXPECT_EQ(memory.problem.units[2].reuses,
            (std::vector<Reuse>{{memory.value_of[3], made}, {memory.value_of[1], made}}));
}

// What a rank's gradient comes as, and its parameter: the update is made in place all the same.
TEST(GraphMemory, AGroupReadsThroughViewsThatMoveNoByte) {
  const auto reuses = [](std::string_view view) {
    const GraphMemory memory = memory_of(str(R"(input %0: f32[4, 4] = parameter "w"
input %1: f32[4, 4] = batch "0"
%2: f32[4, 4] = neg(%1) | backward ""
%3: f32[4, 4] = {} | update "" group 0
%4: f32[4, 4] = sub(%0, %3) | update "" group 0
update %0 = %4
)",
                                             view));
    EXPECT_EQ(memory.problem.units.size(), 2U);
    return memory.input_of[memory.value_of[4]];
  };
  EXPECT_EQ(reuses("reshape(%2) {shape=[4, 4]}"), 0U);
  EXPECT_EQ(reuses("transpose(%2) {permutation=[1, 0]}"), kNone);
}

TEST(GraphMemory, NothingIsWrittenOverWhatIsReadInAnotherOrder) {
  const GraphMemory memory = memory_of(R"(input %0: f32[4, 4] = parameter "w"
%1: f32[4, 4] = neg(%0) | forward ""
%2: f32[4, 4] = transpose(%1) {permutation=[1, 0]} | forward ""
%3: f32[4, 4] = add(%1, %2) | forward ""
%4: f32[4] = sum(%3) {dims=[0], keepdim=false} | forward ""
%5: f32[4, 4] = add(%3, %4) | forward ""
return %5
)");
  EXPECT_TRUE(memory.problem.units[1].reuses.empty());   // %1 is read as it stands and transposed
  EXPECT_TRUE(memory.problem.units[2].reuses.empty());   // a sum is smaller
  EXPECT_EQ(memory.problem.units[3].reuses.size(), 1U);  // of the full-size operand, not of the broadcast one
}

// %3 lies in "mean" when the pause comes, %2 has read it before; the last update waits for the pause, though nothing of
// it is needed there.
TEST(GraphMemory, HostCodeFindsUpdatesInTheirInputs) {
  const GraphMemory memory = memory_of(R"(input %0: f32[4] = buffer "mean"
input %1: f32[4] = parameter "w"
%2: f32[4] = exp(%0) | forward ""
%3: f32[4] = neg(%0) | forward ""
%4: f32[4] = host::pause(0, t[%2], t[%3], [0]) writes 1 draws | forward ""
%5: f32[4] = neg(%1) | backward ""
%6: f32[4] = add(%4, %2) | backward ""
update %0 = %4
update %1 = %5
return %6
)");
  EXPECT_EQ(value_of(memory, 3).bytes, 0U);
  EXPECT_EQ(memory.input_of[memory.value_of[3]], 0U);
  EXPECT_EQ(value_of(memory, 4).bytes, 0U);
  EXPECT_EQ(memory.input_of[memory.value_of[4]], 0U);
  EXPECT_TRUE(value_of(memory, 2).kept) << "the program's from then on";
  EXPECT_EQ(memory.input_of[memory.value_of[5]], 1U);
  EXPECT_EQ(memory.problem.units[1].after, std::vector<uint32_t>{0}) << "who reads the old mean";
  EXPECT_EQ(memory.problem.units[2].after, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(memory.problem.units[3].after, std::vector<uint32_t>{2}) << "an abandoned step has not updated it";
}

TEST(GraphMemory, WhatHostCodeFindsIsCopiedWhereItIsReadLater) {
  const GraphMemory memory = memory_of(R"(input %0: f32[4] = buffer "mean"
%1: f32[4] = neg(%0) | forward ""
%2: f32[4] = host::pause(0, t[], t[%1], [0]) writes 0 draws | forward ""
%3: f32[4] = add(%1, %2) | backward ""
update %0 = %3
)");
  EXPECT_EQ(memory.input_of[memory.value_of[1]], kNone);
  EXPECT_EQ(memory.input_of[memory.value_of[2]], 0U);
  EXPECT_EQ(memory.input_of[memory.value_of[3]], kNone) << "the second update of one input";
}

TEST(GraphMemory, UpdatesLieInTheirInputAndWaitForItsReaders) {
  const GraphMemory memory = memory_of(R"(input %0: f32[4] = parameter "w"
input %1: f32[4] = gradient "w"
%2: f32[4] = mul(%0, %1) | forward ""
%3: f32[4] = exp(%0) | forward ""
%4: f32[4] = add(%0, %1) | update ""
%5: f32[4] = neg(%4) | update ""
update %0 = %5
return %2
return %3
)");
  EXPECT_EQ(value_of(memory, 5).bytes, 0U);
  EXPECT_EQ(value_of(memory, 4).bytes, 0U);  // made in the same memory on the way
  EXPECT_EQ(memory.input_of[memory.value_of[4]], 0U);
  EXPECT_EQ(memory.problem.units[2].after, (std::vector<uint32_t>{0, 1}));
}

TEST(GraphMemory, AnUpdateOfWhatIsStillReadHasMemoryOfItsOwn) {
  const GraphMemory memory = memory_of(R"(input %0: f32[4] = parameter "w"
%1: f32[4] = neg(%0) | update ""
%2: f32[4] = mul(%1, %0) | update ""
update %0 = %1
return %2
)");
  EXPECT_EQ(value_of(memory, 1).bytes, 64U);
  EXPECT_TRUE(value_of(memory, 1).kept);
  const GraphMemory swapped = memory_of(R"(input %0: f32[4] = parameter "a"
input %1: f32[4] = parameter "b"
%2: f32[4] = neg(%0) | update ""
update %0 = %1
update %1 = %2
)");
  EXPECT_EQ(value_of(swapped, 2).bytes, 64U);  // the old b becomes a when the step ends
}

TEST(GraphMemory, UpdatesWaitForGuards) {
  const GraphMemory memory = memory_of(R"(input %0: f32[] = parameter "w"
%1: f32[] = neg(%0) | update ""
%2: f32[] = full() {dtype=f32, shape=[], value=1} | update ""
%3: bool[] = eq(%2, %2) | update ""
update %0 = %1
guard %3
)");
  ASSERT_EQ(memory.problem.units.size(), 3U);
  EXPECT_EQ(memory.input_of[memory.value_of[1]], 0U);
  const uint32_t update = memory.problem.values[memory.value_of[1]].producer;
  const uint32_t guard = memory.problem.values[memory.value_of[3]].producer;
  EXPECT_EQ(memory.problem.units[update].after, (std::vector<uint32_t>{guard}));
}

TEST(GraphMemory, WhatOnlyItsGroupReadsNeedsNoMemory) {
  Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[4] = parameter "w"
%1: f32[4] = neg(%0) | forward ""
%2: f32[4] = exp(%1) | forward ""
%3: f32[4] = tanh(%2) | forward ""
return %2
return %3
)");
  for (Node& node : graph.nodes) node.group = 0;
  const GraphMemory memory = graph_memory(graph, {.workspace_bytes = [](NodeId) { return uint64_t{100}; }});
  verify(memory.problem);
  EXPECT_EQ(memory.problem.units.size(), 1U);
  EXPECT_EQ(memory.value_of[1], kNone);
  EXPECT_TRUE(value_of(memory, 2).kept && value_of(memory, 3).kept);
  EXPECT_EQ(memory.problem.units[0].workspace_bytes, 3U * 128);
}

// A random step: parameters, arithmetic, views, reductions, scatters and updates, some of them in groups.
Graph random_step(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<Shape> shapes = {{4, 6}, {6, 4}, {24}, {4, 6}};
  GraphBuilder b;
  std::vector<TensorId> values;
  const size_t inputs = 2 + below(4);
  for (size_t i = 0; i < inputs; ++i)
    values.push_back(
        b.graph().add_input({InputKind::kParameter, str("{}", i), {}, {}, 0}, {DType::kF32, shapes[below(4)]}));
  const TensorId index = b.graph().add_input({InputKind::kBatch, "index", {}, {}, 0}, {DType::kI64, {2}});
  const auto any = [&] {
    return values[below(4) == 0 ? below(values.size()) : values.size() - 1 - below(std::min<size_t>(values.size(), 5))];
  };
  for (size_t i = 0, n = 5 + below(40); i < n; ++i) {
    const TensorId x = any();
    const Shape shape = b.shape(x);
    TensorId made = x;
    switch (below(8)) {
      case 0:
        made = b.reshape(x, shapes[below(4)]);
        break;
      case 1:
        if (shape.size() == 2) made = b.transpose(x, {1, 0});
        break;
      case 2:
        made = b.add("put_add",
                     {x, index,
                      b.slice(
                          x, Shape(shape.size(), 0),
                          [&] {
                            Shape s = shape;
                            s[0] = 2;
                            return s;
                          }(),
                          Shape(shape.size(), 1))},
                     [] {
                       Attrs attrs;
                       attrs.set("dim", int64_t{0});
                       return attrs;
                     }());
        break;
      case 3:
        made = b.add("add", {x, b.reshape(any(), shape)});
        break;
      case 4:
        made = b.add("mul", {b.sum(x, {0}, true), x});
        break;
      default:
        made = b.add(below(2) == 0 ? "neg" : "tanh", {x});
    }
    values.push_back(made);
  }
  Graph graph = b.take();
  for (uint32_t i = 0; i < inputs; ++i) {
    if (below(4) == 0) continue;
    for (size_t v = values.size(); v-- > inputs;) {
      if (graph.type(values[v]) != graph.type(graph.inputs[i].tensor) || below(3) == 0) continue;
      graph.outputs.push_back({GraphOutput::Kind::kUpdate, values[v], i, {}, {}, {}});
      break;
    }
  }
  graph.outputs.push_back({GraphOutput::Kind::kReturn, values.back(), 0, {}, {}, {}});
  uint32_t group = 0;
  for (size_t n = 0; n + 1 < graph.nodes.size(); ++n) {
    if (below(6) != 0) continue;
    graph.nodes[n].group = graph.nodes[n + 1].group = group++;
    ++n;
  }
  verify_ops(graph);
  return graph;
}

// Memory in which every byte names the tensor whose element it holds.
class NamedBytes {
 public:
  NamedBytes(const Graph& graph, const GraphMemory& memory, const OrderIntervals& intervals, const Layout& layout)
      : graph_(graph), memory_(memory), intervals_(intervals), layout_(layout), arena_(layout.bytes, UINT32_MAX) {
    for (const GraphInput& input : graph.inputs) inputs_.emplace_back(bytes(input.tensor), input.tensor.value);
  }
  void run(uint32_t unit) {
    if (const uint32_t interval = intervals_.workspace_interval_of[unit]; interval != kNone)
      std::fill_n(arena_.begin() + static_cast<std::ptrdiff_t>(layout_.offsets[interval]),
                  memory_.problem.units[unit].workspace_bytes, UINT32_MAX);
    for (NodeId id : memory_.nodes_of[unit])
      for (TensorId input : graph_.nodes[id.index()].inputs)
        if (const uint32_t value = memory_.value_of[input.index()];
            value == kNone || memory_.problem.values[value].producer != unit)
          expect_there(input);
    for (NodeId id : memory_.nodes_of[unit])
      for (TensorId output : graph_.nodes[id.index()].outputs)
        if (const uint32_t value = memory_.value_of[output.index()];
            value != kNone && memory_.tensor_of[value] == output)
          std::fill_n(place(output), bytes(output), output.value);
  }
  void expect_there(TensorId tensor) {
    const TensorId root = root_of(tensor);
    if (graph_.producer(root) != nullptr && memory_.value_of[root.index()] == kNone) return;  // within a kernel
    const auto at = place(root);
    for (size_t i = 0; i < bytes(root); ++i)
      ASSERT_EQ(at[static_cast<std::ptrdiff_t>(i)], root.value) << "%" << tensor.value << " byte " << i;
  }
  void expect_updated(const GraphOutput& output) {
    const TensorId root = root_of(output.tensor);
    if (graph_.producer(root) == nullptr) return;
    const uint32_t value = memory_.value_of[root.index()];
    if (memory_.input_of[value] != kNone && memory_.input_of[value] != output.input) return;  // the step copies it
    expect_there(output.tensor);
  }

 private:
  [[nodiscard]] size_t bytes(TensorId tensor) const { return static_cast<size_t>(bytes_of(graph_.type(tensor))); }
  [[nodiscard]] TensorId root_of(TensorId tensor) const {
    if (const uint32_t value = memory_.value_of[tensor.index()]; value != kNone) return memory_.tensor_of[value];
    for (const Node* node = graph_.producer(tensor); node != nullptr && op_def(node->op).has(Trait::kView);
         node = graph_.producer(tensor))
      tensor = node->inputs[0];
    return tensor;
  }
  std::vector<uint32_t>::iterator place(TensorId root) {
    const uint32_t value = memory_.value_of[root.index()];
    if (value == kNone) return inputs_[graph_.tensors[root.index()].place].begin();
    if (memory_.input_of[value] != kNone) return inputs_[memory_.input_of[value]].begin();
    return arena_.begin() + static_cast<std::ptrdiff_t>(layout_.offsets[intervals_.interval_of[value]]);
  }

  const Graph& graph_;
  const GraphMemory& memory_;
  const OrderIntervals& intervals_;
  const Layout& layout_;
  std::vector<uint32_t> arena_;
  std::vector<std::vector<uint32_t>> inputs_;
};

TEST(GraphMemory, NothingIsWrittenOverWhileItIsNeeded) {
  size_t in_place = 0;
  size_t homed = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = random_step(seed);
    const GraphMemory memory = graph_memory(graph, {.workspace_bytes = [&](NodeId node) {
                                              return uint64_t{graph.nodes[node.index()].inputs.size() == 2 ? 64U : 0U};
                                            }});
    verify(memory.problem);
    for (const OrderUnit& unit : memory.problem.units) in_place += unit.reuses.size();
    for (uint32_t input : memory.input_of) homed += input != kNone ? 1 : 0;
    for (const UnitOrder& order : {program_order(memory.problem), plan_order(memory.problem).order}) {
      verify_order(memory.problem, order);
      const OrderIntervals intervals = intervals_of(memory.problem, order);
      const Layout layout = plan_layout(intervals.layout);
      verify_layout(intervals.layout, layout);
      NamedBytes bytes(graph, memory, intervals, layout);
      for (uint32_t unit : order) {
        bytes.run(unit);
        if (HasFatalFailure()) return;
      }
      for (const GraphOutput& output : graph.outputs) {
        if (output.kind == GraphOutput::Kind::kUpdate)
          bytes.expect_updated(output);
        else
          bytes.expect_there(output.tensor);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(in_place, 1000U);
  EXPECT_GT(homed, 300U);
}

TEST(GraphMemory, NodesInAnOrderAreAGraph) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = random_step(seed);
    const GraphMemory memory = graph_memory(graph);
    const std::vector<NodeId> nodes = node_order(graph, memory, plan_order(memory.problem).order);
    ASSERT_EQ(nodes.size(), graph.nodes.size());
    std::vector<bool> made(graph.tensors.size(), false);
    for (const GraphInput& input : graph.inputs) made[input.tensor.index()] = true;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = graph.nodes[nodes[i].index()];
      for (TensorId input : node.inputs) ASSERT_TRUE(made[input.index()]) << "node " << nodes[i].value;
      for (TensorId output : node.outputs) made[output.index()] = true;
      if (node.group && i > 0 && nodes[i].index() > 0 && graph.nodes[nodes[i].index() - 1].group == node.group) {
        ASSERT_EQ(nodes[i - 1].index() + 1, nodes[i].index()) << "a group stands in a row";
      }
    }
  }
}

}  // namespace
}  // namespace stepc
