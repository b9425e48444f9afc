#include "ir/graph.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// Every kind of line: strided input, several outputs, an opaque call with effects, each kind of output.
constexpr std::string_view kText = R"(stepc.graph 1
input %0: f32[4, 8] = parameter "weight"
input %1: f32[2, 8](9, 1)+1 = batch "0"
input %2: i64[2] = rng ""
%3: f32[2, 4] = matmul(%1, %0) {transpose_a=false, transpose_b=true} | forward "model.proj"
%4: f32[2, 4], %5: i64[2, 4] = sort(%3) {descending=false, dim=1} | forward ""
%6: f32[2], %7: f32[4, 8] = aten::frob_(%0, [1, 2], t[%3, undefined], number(0.5), dtype:bf16, generator(0), none) -> %, none writes 0 draws layout 1(1, 2) | backward "a \"b\""
= aten::check(%6) workspace 4096 18446744073709551615 | update ""
%8: bool[] = full() {dtype=bool, shape=[], value=1} | update "" group 3
%9: f64[] = full() {dtype=f64, shape=[], value=-inf} | update ""
guard %8
update %0 = %7
rebind gradient "weight" %7(1, 4)
rebind gradient "bias" none
return %6
return none
number %9
)";

TEST(GraphText, RoundTrips) {
  const Graph graph = parse_graph(kText);
  verify(graph);
  EXPECT_EQ(to_text(graph), kText);
  EXPECT_EQ(parse_graph(to_text(graph)), graph);
  EXPECT_EQ(graph.inputs[1].strides, (Shape{9, 1}));
  EXPECT_EQ(graph.inputs[1].offset, 1);
  const AtenCall& call = *graph.nodes[2].aten;
  EXPECT_EQ(call.writes, std::vector<uint32_t>{0});
  EXPECT_TRUE(call.draws);
  EXPECT_EQ(graph.nodes[2].inputs, (std::vector<TensorId>{TensorId(0), TensorId(3)}));
  EXPECT_EQ(graph.nodes[2].source.phase, Phase::kBackward);
  EXPECT_FALSE(call.measured);
  const AtenCall& check = *graph.nodes[3].aten;
  EXPECT_TRUE(check.measured);
  EXPECT_EQ(check.workspace_bytes, 4096U);
  EXPECT_EQ(check.worker_bytes, UINT64_MAX);
}

// A pause that gives %1 away, transposed, and finds %3 in the memory of input 0; then an optimizer on the host.
constexpr std::string_view kHostText = R"(stepc.graph 1
input %0: f32[4] = buffer "mean"
input %1: f32[4, 8] = batch "0"
input %2: f32[4, 8] = incoming "0"
%3: f32[4] = exp(%0) | forward ""
%4: f32[4], %5: f32[4, 8] = host::pause(0, t[%1, undefined], t[%3, %2], [0, 2]) writes 1, 2 draws layout 0(1, 4) | forward ""
%6: f32[4] = host::event(1, t[], t[%4], [0]) writes 0 draws | update ""
update %0 = %6
return %5
)";

TEST(HostCode, RoundTrips) {
  const Graph graph = parse_graph(kHostText);
  verify(graph);
  EXPECT_EQ(to_text(graph), kHostText);
  const HostCode pause = host_code_of(graph.nodes[1]);
  EXPECT_TRUE(pause.pauses);
  EXPECT_EQ(pause.event, 0U);
  ASSERT_EQ(pause.given.size(), 2U);
  EXPECT_EQ(pause.given[0].tensor, TensorId(1));
  EXPECT_EQ(pause.given[0].strides, (Shape{1, 4}));
  EXPECT_FALSE(pause.given[1].tensor.valid());
  ASSERT_EQ(pause.slots.size(), 2U);
  EXPECT_EQ(pause.slots[1].input, 2U);
  EXPECT_EQ(pause.slots[1].before, TensorId(2));
  EXPECT_EQ(pause.slots[1].after, TensorId(5));
  Node again = node_of(pause);
  again.outputs = graph.nodes[1].outputs;
  again.source = graph.nodes[1].source;
  EXPECT_EQ(again, graph.nodes[1]);
  EXPECT_FALSE(host_code_of(graph.nodes[2]).pauses);
}

TEST(HostCode, IsVerified) {
  const auto why_not = [](std::string_view from, std::string_view to) {
    std::string text(kHostText);
    text.replace(text.find(from), from.size(), to);
    try {
      verify(parse_graph(text));
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(why_not("return %5", "return %2"), testing::HasSubstr("an output reads incoming '0' before the pause"));
  EXPECT_THAT(why_not("exp(%0)", "aten::any(%2)"), testing::HasSubstr("reads incoming '0' before the pause"));
  EXPECT_THAT(why_not("[0, 2]", "[0, 7]"), testing::HasSubstr("what it changes of input 7"));
  EXPECT_THAT(why_not("[0, 2]", "[0]"), testing::HasSubstr("changes 2 tensors of 1 inputs"));
  EXPECT_THAT(why_not("[0, 2]", "[2, 0]"), testing::HasSubstr("leaves another type in incoming '0'"));
  EXPECT_THAT(why_not("event(1, t[], t[%4], [0]) writes 0 draws", "event(1, t[], t[%4], [0]) writes 0"),
              testing::HasSubstr("is not written as host code is"));
  EXPECT_THAT(why_not("event(1, t[], t[%4]", "event(t[], 1, t[%4]"), testing::HasSubstr("is not written as host code"));
}

TEST(GraphText, EveryKindOfAttributeRoundTrips) {
  Graph graph;
  Node node;
  node.op = "op";
  node.attrs = {{"yes", true},
                {"count", int64_t{-7}},
                {"real", 0.1},
                {"nan", static_cast<double>(NAN)},
                {"tiny", 1e-300},
                {"dtype", DType::kF8E4M3},
                {"text", std::string("a \"quoted\" \\ text\n")},
                {"ints", Shape{1, -2}},
                {"none", Shape{}},
                {"reals", std::vector<double>{0.5, -INFINITY}}};
  graph.add_node(node, {});
  EXPECT_EQ(parse_graph(to_text(graph)), graph) << to_text(graph);
}

TEST(GraphText, ARuleOfAProgramsOwnOperatorRoundTrips) {
  const std::string text =
      "stepc.graph 1\n"
      "input %0: f32[4, 6] = batch \"0\"\n"
      "input %1: f32[6, 2] = parameter \"weight\"\n"
      "%2: f32[4, 2] = my::product(%0, %1) -> % workspace 64 0 rule flops 96.0 bytes 176.0 dims "
      "\"m k, k n -> m n; k: sum\" | forward \"\"\n"
      "%3: f32[4, 2] = my::row(%2) -> % rule flops 0.0 | forward \"\"\n"
      "return %3\n";
  const Graph graph = parse_graph(text);
  verify(graph);
  EXPECT_EQ(to_text(graph), text);
  EXPECT_EQ(parse_graph(to_text(graph)), graph);
  ASSERT_TRUE(graph.nodes[0].aten->rule.has_value());
  EXPECT_EQ(graph.nodes[0].aten->rule->flops, 96);
  EXPECT_FALSE(graph.nodes[1].aten->rule->dims.has_value());

  Graph other = graph;
  other.nodes[0].aten->rule->dims->operands.pop_back();
  EXPECT_THROW(verify(other), InternalError);
}

TEST(GraphText, BadTextIsRefusedWithItsLine) {
  const auto expect = [](const std::string& text, const std::string& message) {
    EXPECT_USER_ERROR(parse_graph(text), message);
  };
  const std::string head = "stepc.graph 1\n";
  expect("", "graph text, line 0: expected 'stepc.graph 1'");
  expect(head + "hello\n", "graph text, line 2: expected '%'");
  expect(head + "%0: f32[2] = add(%1) | forward \"\"\n", "%1 is used and never defined");
  expect(head + "input %0: f33[2] = batch \"x\"\n", "expected a dtype");
  expect(head + "input %0: f32[-2] = batch \"x\"\n", "a shape is out of range");
  expect(head + "input %0: f32[4294967296, 4294967296, 4294967296] = batch \"x\"\n", "a shape is out of range");
  expect(head + "input %0: f32[2](1, 1) = batch \"x\"\n", "as many strides as sizes are needed");
  expect(head + "input %0: f32[2] = friend \"x\"\n", "expected what kind of input this is");
  expect(head + "%0: f32[] = full() {value=1.0, value=2.0} | forward \"\"\n", "'value' is given twice");
  expect(head + "%0: f32[] = full() | sideways \"\"\n", "expected a phase");
  expect(head + "%0: f32[] = full() | forward \"\"\n%0: f32[] = full() | forward \"\"\n", "%0 is defined twice");
  expect(head + "%0: f32[] = full() | forward \"\"\nupdate %0 = %0\n", "%0 is no input");
  expect(head + "= aten::check(read(0, int)) | forward \"\"\n", "a Graph reads no numbers on the host");
  expect(head + "= aten::check() workspace 1 -1 | forward \"\"\n", "expected a number of 0 and up");
  expect(head + "%99999999: f32[] = full() | forward \"\"\n", "index 99999999 is out of range");
}

constexpr std::string_view kOnRanks = R"(stepc.graph 1
mesh dp_shard=2,tp=4
input %0: f32[16, 6](6, 1) <2*8/tp, 6> = parameter "w"
input %1: f32[3, 2] = batch "x" part of <5/dp_shard, 8/tp>
input %2: i64[2] = mesh ""
%3: f32[16, 6] <16/dp_shard/tp, 6> = reshard(%0) | forward ""
%4: f32[16] <16/dp_shard> sum(tp) = sum(%3) {dims=[1], keepdim=false} | forward ""
return %4
return %1 part of <5/dp_shard, 8/tp>
)";

TEST(GraphText, MeshAndShardingsRoundTrip) {
  const Graph graph = parse_graph(kOnRanks);
  verify(graph);
  EXPECT_EQ(to_text(graph), kOnRanks);
  EXPECT_EQ(graph.tensors[4].sharding->partial_over(1), ReduceOp::kSum);
  EXPECT_EQ(graph.inputs[1].part->shape, (Shape{5, 8}));
}

TEST(GraphText, ABadShardingIsRefusedWithItsLine) {
  const auto expect = [](const std::string& line, const std::string& message) {
    EXPECT_USER_ERROR(parse_graph("stepc.graph 1\nmesh dp_shard=2,tp=4\n" + line), message);
  };
  expect("mesh tp=2\n", "line 3: the mesh stands once, before all tensors");
  expect("input %0: f32[8] <8/cp> = batch \"x\"\n", "line 3: the mesh has no axis 'cp'");
  expect("input %0: f32[8] <4/tp> = batch \"x\"\n", "the sharding of a f32[8] has another shape");
  expect("input %0: f32[8, 8] <8/tp, 8/tp> = batch \"x\"\n", "an axis is used twice");
  expect("input %0: f32[8] <8/tp> sum(tp) = batch \"x\"\n", "an axis is used twice");
  expect("input %0: f32[0] <0/tp> = batch \"x\"\n", "a dimension of size 0 is not split");
  expect("input %0: f32[8] <-8> = batch \"x\"\n", "a piece is out of range");
  EXPECT_USER_ERROR(parse_graph("stepc.graph 1\nmesh tp=4,dp_shard=2\n"),
                    "written as a mesh is, it is dp_shard=2,tp=4");
  EXPECT_USER_ERROR(parse_graph("stepc.graph 1\nmesh tq=4\n"), "did you mean 'tp'?");
}

void expect_broken(const std::string& what, const std::function<void(Graph&)>& change) {
  Graph graph = parse_graph(kText);
  change(graph);
  try {
    verify(graph);
    FAIL() << "nothing was wrong; expected: " << what;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

TEST(GraphVerify, NamesTheBrokenPromise) {
  expect_broken("reads %6 before it is made", [](Graph& g) { std::swap(g.nodes[2], g.nodes[3]); });
  expect_broken("does not know where it is made", [](Graph& g) { g.tensors[3].place = 1; });
  expect_broken("is defined twice", [](Graph& g) { g.nodes[4].outputs[0] = TensorId(3); });
  expect_broken("is never made", [](Graph& g) { g.tensors.emplace_back(); });
  expect_broken("parameter 'weight' is an input twice", [](Graph& g) {
    g.inputs[1].kind = InputKind::kParameter;
    g.inputs[1].key = "weight";
  });
  expect_broken("input 0 is a f32[4, 8] and is updated with a f32[2]",
                [](Graph& g) { g.outputs[1].tensor = TensorId(6); });
  expect_broken("input 0 is updated twice", [](Graph& g) { g.outputs.push_back(g.outputs[1]); });
  expect_broken("guard 0 is a f64[]", [](Graph& g) { g.outputs[0].tensor = TensorId(9); });
  expect_broken("writes a f32[2, 4] and gives a f32[4, 8]", [](Graph& g) { g.nodes[2].aten->writes = {1}; });
  expect_broken("numbers its arguments out of order", [](Graph& g) { g.nodes[2].aten->args[0] = ValueId(1); });
  expect_broken("output 1 has no tensor", [](Graph& g) { g.outputs[1].tensor = TensorId(); });
  expect_broken("has 1 strides and 2 dimensions", [](Graph& g) { g.inputs[1].strides = {1}; });
}

TEST(GraphVerify, AGroupHasNoGap) {
  expect_broken("continues group 3 after a gap", [](Graph& g) {
    g.nodes[0].group = 3;
    g.nodes[1].group = 4;
  });
}

TEST(Graph, AGroupIsAGraphOfItsOwn) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[4](2) = parameter "x"
%1: f32[4] = neg(%0) | forward ""
%2: f32[4] = exp(%1) | forward "" group 7
%3: f32[4] = mul(%2, %0) | forward "" group 7
%4: f32[4] = add(%3, %2) | forward "" group 7
%5: f32[4] = neg(%2) | forward ""
return %4
return %5
)");
  verify(graph);
  const std::vector<GroupGraph> groups = extract_groups(graph);
  ASSERT_EQ(groups.size(), 1U);
  const GroupGraph& group = groups[0];
  EXPECT_EQ(group.group, 7U);
  verify(group.graph);
  EXPECT_EQ(to_text(group.graph), R"(stepc.graph 1
input %0: f32[4] = captured "0"
input %2: f32[4] = captured "1"
%1: f32[4] = exp(%0) | forward ""
%3: f32[4] = mul(%1, %2) | forward ""
%4: f32[4] = add(%3, %1) | forward ""
return %1
return %4
)");
  EXPECT_EQ(group.inputs, (std::vector<TensorId>{TensorId(1), TensorId(0)}));
  EXPECT_EQ(group.outputs, (std::vector<TensorId>{TensorId(2), TensorId(4)}));
}

TEST(Graph, CountsUsesWithOutputs) {
  const std::vector<uint32_t> uses = use_counts(parse_graph(kText));
  EXPECT_EQ(uses[0], 2U);
  EXPECT_EQ(uses[3], 2U);
  EXPECT_EQ(uses[7], 2U) << "an update and a rebinding";
  EXPECT_EQ(uses[5], 0U);
}

}  // namespace
}  // namespace stepc
