// functionalise() on small Traces, one construct each.
#include <gtest/gtest.h>

#include "base/check.h"
#include "interp/interpret.h"
#include "ops/op_def.h"
#include "passes/from_trace/functionalise.h"
#include "passes/rewrite/dead_code.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

// The graph of a trace given without its head, nodes without use left out.
Graph graph_of(const std::string& text) {
  const Trace trace = parse_trace("stepc.trace 1\n" + text + "ticks 0\n");
  verify(trace);
  Graph graph = functionalise(trace);
  verify_ops(graph);
  return dead_code(std::move(graph));
}
void expect_graph(const std::string& trace, const std::string& graph) {
  EXPECT_EQ(to_text(graph_of(trace)), "stepc.graph 1\n" + graph);
}

TEST(FunctionaliseCase, WriteThroughAViewUpdatesTheParameter) {
  expect_graph(R"(storage s0 bytes=24 external
%0: f32[2, 3] @s0 = parameter "w"
call 0 %1: f32[2](3)+1 @s0 = aten::select.int(%0, 1, 1) | forward "m"
call 1 %1 = aten::mul_.Scalar(%1, 2.0) writes %1 | update "m"
return %1
)",
               R"(input %0: f32[2, 3] = parameter "w"
%1: f32[2, 1] = slice(%0) {shape=[2, 1], starts=[0, 1], steps=[1, 1]} | update "m"
%2: f32[2] = reshape(%1) {shape=[2]} | update "m"
%3: f32[] = full() {dtype=f32, shape=[], value=2.0} | update "m"
%4: f32[2] = mul(%2, %3) | update "m"
%5: f32[2, 1] = reshape(%4) {shape=[2, 1]} | update "m"
%6: f32[2, 3] = update_slice(%0, %5) {starts=[0, 1], steps=[1, 1]} | update "m"
update %0 = %6
return %4(3)
)");
}

// Rounded as the allocator rounds: 128 + 64 at tick 1, then less; not the result, nor what outlives the step.
TEST(FunctionaliseCase, OpaqueCallsSayWhatTheirKernelsTook) {
  const std::string calls[] = {R"(stepc.trace 1
storage s0 bytes=8 external
storage s1 bytes=8
storage s2 bytes=8
%0: f32[2] @s0 = parameter "w"
call 0 %1: f32[2] @s1 = aten::frob(%0) | forward ""
)",
                               R"(  alloc 100 [0, 2)
  alloc 60 [1, 3)
  alloc 5000 [1, 9) kept
  alloc 8 @s1 [1, 8)
  alloc 128 [3, 4)
  scratch 100 [3, 4)
)",
                               R"(call 1 %2: f32[2] @s2 = aten::frob(%1) | forward ""
return %2
ticks 9
)"};
  const Trace recorded = parse_trace(calls[0] + calls[1] + calls[2]);
  verify(recorded);
  EXPECT_EQ(to_text(functionalise(recorded)), R"(stepc.graph 1
input %0: f32[2] = parameter "w"
%1: f32[2] = aten::frob(%0) -> % workspace 192 128 | forward ""
%2: f32[2] = aten::frob(%1) -> % workspace 0 0 | forward ""
return %2
)");
  // A trace without execution does not know.
  EXPECT_EQ(to_text(functionalise(parse_trace(calls[0] + calls[2]))), R"(stepc.graph 1
input %0: f32[2] = parameter "w"
%1: f32[2] = aten::frob(%0) -> % | forward ""
%2: f32[2] = aten::frob(%1) -> % | forward ""
return %2
)");
}

TEST(FunctionaliseCase, TiedParametersAreOneInput) {
  const Graph graph = graph_of(R"(storage s0 bytes=8 external
storage s1 bytes=8
%0: f32[2] @s0 = parameter "embedding"
%1: f32[2] @s0 = parameter "head"
call 0 %2: f32[2] @s1 = aten::add.Tensor(%0, %1, 1) | forward ""
call 1 %1 = aten::copy_(%1, %2) writes %1 | update ""
return %0
)");
  ASSERT_EQ(graph.inputs.size(), 1U);
  EXPECT_EQ(graph.inputs[0].key, "embedding");
  EXPECT_EQ(graph.outputs[0].kind, GraphOutput::Kind::kUpdate);
  EXPECT_EQ(graph.outputs[0].tensor, graph.outputs[1].tensor) << "the update is seen through the other name";
}

TEST(FunctionaliseCase, WindowsBeyondTheInputTakeAllOfItsMemory) {
  expect_graph(R"(storage s0 bytes=32 external
storage s1 bytes=8
%0: f32[2](2)+1 @s0 = batch "0"
%1: f32[2]+4 @s0 = alias
call 0 %2: f32[2] @s1 = aten::add.Tensor(%0, %1, 1) | forward ""
return %2
)",
               R"(input %0: f32[8] = batch "0"
%1: f32[4, 2] = reshape(%0) {shape=[4, 2]} | forward ""
%2: f32[2, 1] = slice(%1) {shape=[2, 1], starts=[0, 1], steps=[1, 1]} | forward ""
%3: f32[2] = reshape(%2) {shape=[2]} | forward ""
%4: f32[2] = slice(%0) {shape=[2], starts=[4], steps=[1]} | forward ""
%5: f32[2] = add(%3, %4) | forward ""
return %5
)");
}

TEST(FunctionaliseCase, OneMemoryAsTwoDtypes) {
  const Graph graph = graph_of(R"(storage s0 bytes=8 external
%0: f32[2] @s0 = buffer "x"
%1: i32[2] @s0 = alias
call 0 %1 = aten::bitwise_and_.Scalar(%1, 2147483647) writes %1 | forward ""
return %0
)");
  Array x({DType::kF32, {2}});
  x.set(0, -1.5);
  x.set(1, 2.0);
  EXPECT_EQ(interpret(graph, {x})[0].reals, (std::vector<double>{1.5, 2.0})) << "the sign bit is gone";
}

TEST(FunctionaliseCase, CallsWithoutARowStayOpaqueWithTheirEffects) {
  expect_graph(R"(storage s0 bytes=8 external
storage s1 bytes=16 external
storage s2 bytes=4
%0: f32[2] @s0 = parameter "w"
%1: f32[4] @s1 = buffer "b"
call 0 %2: f32[2](2) @s1 = aten::slice.Tensor(%1, 0, 0, 4, 2) | forward ""
call 1 %2; %3: f32[] @s2 = aten::frobnicate_(%2, t[%0, undefined], 0.5, dtype:f32) writes %2 | forward "net"
call 2 %4: f32[2](2)+1 @s1 = aten::slice.Tensor(%1, 0, 1, 4, 2) | forward ""
call 3 %4 = aten::bernoulli_.Tensor(%4, %0, none) writes %4 | forward "net"
return %3
)",
               R"(input %0: f32[2] = parameter "w"
input %1: f32[4] = buffer "b"
%2: f32[2, 2] = reshape(%1) {shape=[2, 2]} | forward "net"
%3: f32[2, 1] = slice(%2) {shape=[2, 1], starts=[0, 0], steps=[1, 1]} | forward "net"
%4: f32[2] = reshape(%3) {shape=[2]} | forward "net"
%5: f32[], %6: f32[2] = aten::frobnicate_(%4, t[%0, undefined], 0.5, dtype:f32) -> none, % writes 0 layout 0(2) | forward "net"
%7: f32[2, 1] = reshape(%6) {shape=[2, 1]} | forward "net"
%8: f32[2, 2] = reshape(%1) {shape=[2, 2]} | forward "net"
%9: f32[2, 2] = update_slice(%8, %7) {starts=[0, 0], steps=[1, 1]} | forward "net"
%10: f32[4] = reshape(%9) {shape=[4]} | forward "net"
%11: f32[2, 2] = reshape(%10) {shape=[2, 2]} | forward "net"
%12: f32[2, 1] = slice(%11) {shape=[2, 1], starts=[0, 1], steps=[1, 1]} | forward "net"
%13: f32[2] = reshape(%12) {shape=[2]} | forward "net"
%14: f32[2] = aten::bernoulli_.Tensor(%13, %0, none) -> none writes 0 draws layout 0(2) | forward "net"
%15: f32[2, 1] = reshape(%14) {shape=[2, 1]} | forward "net"
%16: f32[2, 2] = reshape(%10) {shape=[2, 2]} | forward "net"
%17: f32[2, 2] = update_slice(%16, %15) {starts=[0, 1], steps=[1, 1]} | forward "net"
%18: f32[4] = reshape(%17) {shape=[4]} | forward "net"
update %1 = %18
return %5
)");
}

TEST(FunctionaliseCase, ARowThatDoesNotFitLeavesTheCallOpaque) {
  const std::string head = R"(storage s0 bytes=8 external
storage s1 bytes=8
%0: f32[2] @s0 = batch "0"
)";
  const auto op_of = [&](const std::string& call) { return graph_of(head + call + "return %1\n").nodes.back().op; };
  EXPECT_EQ(op_of("call 0 %1: f32[2] @s1 = aten::threshold_backward(%0, %0, 0) | forward \"\"\n"), "relu_backward");
  EXPECT_EQ(op_of("call 0 %1: f32[2] @s1 = aten::threshold_backward(%0, %0, 0.5) | forward \"\"\n"),
            "aten::threshold_backward");
}

constexpr std::string_view kTwoCalls = R"(stepc.trace 1
storage s0 bytes=8 external
storage s1 bytes=4 external
storage s2 bytes=8
%0: f32[2] @s0 = parameter "w"
%1: f32[] @s1 = buffer "x"
call 0 3.5 = aten::_local_scalar_dense(%1) | forward ""
call 1 %2: f32[2] @s2 = aten::mul.Scalar(%0, 3.5) | update ""
return %2
ticks 0
)";

TEST(FunctionaliseCase, NumbersReadOnTheHostAreTensors) {
  Trace trace = parse_trace(kTwoCalls);
  HostRead read;
  read.call = CallId(0);
  trace.reads = {read};
  trace.calls[1].args[1] = ReadNumber{CallId(0), ReadNumber::Kind::kDouble, false};
  trace.numbers = {ReadNumber{CallId(0), ReadNumber::Kind::kInt, false}, Arg(true)};
  const Graph graph = dead_code(functionalise(trace));
  verify_ops(graph);
  ASSERT_EQ(graph.outputs.size(), 3U);
  EXPECT_EQ(graph.outputs[1].kind, GraphOutput::Kind::kNumber);
  Array w({DType::kF32, {2}});
  w.set(0, 2.0);
  Array x({DType::kF32, {}});
  x.set(0, 7.5);
  std::vector<Array> inputs;
  for (const GraphInput& input : graph.inputs) inputs.push_back(input.key == "w" ? w : x);
  const std::vector<Array> out = interpret(graph, inputs);
  EXPECT_EQ(out[0].reals, (std::vector<double>{15, 0})) << "7.5 as it is now, not 3.5 as it was recorded";
  EXPECT_EQ(out[1].integers, (std::vector<int64_t>{7}));
  EXPECT_EQ(out[2].integers, (std::vector<int64_t>{1}));
}

// A number of the host's is an input of the node, and none of the operands whose dimensions the rule names.
TEST(FunctionaliseCase, ARuleGoesWithItsCall) {
  Trace trace = parse_trace(R"(stepc.trace 1
storage s0 bytes=8 external
storage s1 bytes=4 external
storage s2 bytes=8
%0: f32[2] @s0 = parameter "w"
%1: f32[] @s1 = batch "0"
call 0 3.5 = aten::_local_scalar_dense(%1) | forward ""
call 1 %2: f32[2] @s2 = my::op(2.5, %0) rule flops 2.0 bytes 16.0 dims "n -> n" | forward ""
return %2
ticks 0
)");
  HostRead read;
  read.call = CallId(0);
  trace.reads = {read};
  trace.calls[1].args[0] = ReadNumber{CallId(0), ReadNumber::Kind::kDouble, false};
  const Graph graph = dead_code(functionalise(trace));
  verify_ops(graph);
  const Node& node = graph.nodes.back();
  ASSERT_TRUE(node.aten && node.aten->rule);
  EXPECT_EQ(to_text(*node.aten->rule), R"(rule flops 2.0 bytes 16.0 dims ", n -> n")");
  EXPECT_EQ(to_text(sharding_rule_of(graph, node)), "() ({0}) -> ({0}); 0 of 2 parallel");
}

TEST(FunctionaliseCase, GuardsMustBeTrue) {
  Trace trace = parse_trace(kTwoCalls);
  HostRead read;
  read.call = CallId(0);
  read.guard = true;
  trace.reads = {read};
  const Graph graph = dead_code(functionalise(trace));
  ASSERT_EQ(graph.outputs[0].kind, GraphOutput::Kind::kGuard);
  for (double now : {3.5, 4.0}) {
    std::vector<Array> inputs;
    for (const GraphInput& input : graph.inputs) inputs.emplace_back(graph.type(input.tensor));
    inputs[1].set(0, now);
    EXPECT_EQ(interpret(graph, inputs)[0].integers[0], now == 3.5 ? 1 : 0);
  }
}

TEST(FunctionaliseCase, ShadowEventsGiveTheirNumbersAnew) {
  Trace trace = parse_trace(R"(stepc.trace 1
storage s0 bytes=8 external
storage s1 bytes=4 external
%0: f32[2] @s0 = parameter "w"
%1: f32[] @s1 = optimizer_state "step"
call 0 %1 = aten::add_.Scalar(%1, 1, 1) writes %1 | update ""
call 1 %0 = aten::mul_.Scalar(%0, 0.99) writes %0 | update ""
call 2 %0 = aten::add_.Tensor(%0, %1, 1) writes %0 | update ""
ticks 0
)");
  HostEvent event;
  event.kind = HostEvent::Kind::kShadow;
  event.key = "sgd";
  event.begin = CallId(0);
  event.end = CallId(2);
  event.own_calls = {CallId(0)};
  trace.events = {event};
  const Graph graph = dead_code(functionalise(trace));
  verify_ops(graph);
  EXPECT_EQ(to_text(graph), R"(stepc.graph 1
input %0: f32[2] = parameter "w"
input %1: f32[] = optimizer_state "step"
input %2: f64[] = scalar "sgd:1:1"
%3: f32[] = cast(%2) {dtype=f32} | update ""
%4: f32[2] = mul(%0, %3) | update ""
%5: f32[2] = add(%4, %1) | update ""
update %0 = %5
)") << "the host has counted the step before; its own call is not in the graph";
}

TEST(FunctionaliseCase, EagerEventsGetTheirGradientsAndKeepTheirCalls) {
  Trace trace = parse_trace(R"(stepc.trace 1
storage s0 bytes=8 external
storage s1 bytes=8 escapes
%0: f32[2] @s0 = parameter "w"
call 0 %1: f32[2] @s1 = aten::mul.Scalar(%0, 2.0) | backward ""
call 1 %0 = aten::add_.Tensor(%0, %1, 1) writes %0 | update ""
ticks 0
)");
  HostEvent event;
  event.kind = HostEvent::Kind::kEager;
  event.begin = CallId(1);
  event.end = CallId(2);
  event.gradients = {{Owner::kGradient, "w", ValueId(1)}};
  trace.events = {event};
  EXPECT_EQ(to_text(dead_code(functionalise(trace))), R"(stepc.graph 1
input %0: f32[2] = parameter "w"
%1: f32[] = full() {dtype=f32, shape=[], value=2.0} | backward ""
%2: f32[2] = mul(%0, %1) | backward ""
%3: f32[2] = host::event(0, t[%2], t[%0], [0]) writes 1 draws | update ""
update %0 = %3
)") << "the update is the optimizer's own";
  // What it makes of the gradient is not known.
  trace.events[0].begin = CallId(1);
  trace.calls.push_back(trace.calls[1]);
  trace.calls[1].args = {ValueId(1), ValueId(0), int64_t{1}};
  trace.calls[1].writes = {ValueId(1)};
  EXPECT_USER_ERROR(functionalise(trace), "what host code changes of the step's own is read again");
}

// A running mean that the forward pass changes, and what the program may do with it before the backward pass.
TEST(FunctionaliseCase, APauseFindsTheProgramsMemoryUpToDate) {
  expect_graph(R"(storage s0 bytes=8 external
storage s1 bytes=8 external
storage s2 bytes=8 escapes
storage s3 bytes=8 external
storage s4 bytes=8 escapes
%0: f32[2] @s0 = buffer "mean"
%1: f32[2] @s1 = batch "0"
%2: f32[2] @s3 = incoming "0"
event pause "0" [2, 2)
  gives %3: f32[2] @s2
call 0 %3 = aten::exp(%1) | forward "m"
call 1 %0 = aten::add_.Tensor(%0, %3, 1) writes %0 | forward "m"
call 2 %4: f32[2] @s4 = aten::mul.Tensor(%2, %0) | backward "m"
return %4
)",
               R"(input %0: f32[2] = buffer "mean"
input %1: f32[2] = batch "0"
input %2: f32[2] = incoming "0"
%3: f32[2] = exp(%1) | forward "m"
%4: f32[2] = add(%0, %3) | forward "m"
%5: f32[2], %6: f32[2] = host::pause(0, t[%3], t[%4, %2], [0, 2]) writes 1, 2 draws | forward ""
%7: f32[2] = mul(%6, %5) | backward "m"
update %0 = %5
return %7
)");
}

TEST(FunctionaliseCase, RecomputedDrawsHaveTheirFirstStream) {
  Trace trace = parse_trace(R"(stepc.trace 1
storage s0 bytes=8
storage s1 bytes=8
storage s2 bytes=8
call 0 %0: f32[2] @s0 = aten::rand([2]) | forward ""
call 1 %1: f32[2] @s1 = aten::rand([2]) | forward ""
call 2 %2: f32[2] @s2 = aten::rand([2]) | backward ""
return %0, %1, %2
ticks 0
)");
  trace.generators = {"default"};
  GeneratorState state;
  state.generator = GeneratorId(0);
  state.kind = GeneratorState::Kind::kAfterCall;
  state.call = CallId(0);
  trace.states = {state};
  trace.loads = {{CallId(2), StateId(0)}};
  const Graph graph = functionalise(trace);
  std::vector<int64_t> streams;
  for (const Node& node : graph.nodes) streams.push_back(node.attrs.get<int64_t>("stream"));
  EXPECT_EQ(streams, (std::vector<int64_t>{0, 1, 1}));
}

TEST(FunctionaliseCase, HostDataIsAConstant) {
  Trace trace = parse_trace(R"(stepc.trace 1
storage s0 bytes=8 external
storage s1 bytes=8
%0: f32[2] @s0 = captured "c"
call 0 %1: f32[2] @s1 = aten::neg(%0) | forward ""
return %1
ticks 0
)");
  trace.externals[0].owner = Owner::kConstant;
  Array data({DType::kF32, {2}});
  data.set(0, 1.5);
  data.set(1, -2.0);
  const std::vector<uint8_t> bytes = to_bytes(data);
  trace.constants = {{"c", std::string(bytes.begin(), bytes.end())}};
  const Graph graph = functionalise(trace);
  verify_ops(graph);
  EXPECT_TRUE(graph.inputs.empty());
  EXPECT_EQ(interpret(graph, {})[0].reals, (std::vector<double>{-1.5, 2.0}));
}

// Patches behind a token: rows and columns of patches do not begin where blocks of memory do, but both together do.
TEST(FunctionaliseCase, DimensionsWithoutAGapAreOneSlice) {
  expect_graph(R"(storage s0 bytes=60 external
%0: f32[1, 5, 3] @s0 = batch "x"
call 0 %1: f32[1, 3, 2, 2](15, 1, 6, 3)+3 @s0 = aten::as_strided(%0, [1, 3, 2, 2], [15, 1, 6, 3], 3) | forward "m"
call 1 %1 = aten::mul_.Scalar(%1, 2.0) writes %1 | forward "m"
)",
               R"(input %0: f32[1, 5, 3] = batch "x"
%1: f32[5, 3] = reshape(%0) {shape=[5, 3]} | forward "m"
%2: f32[4, 3] = slice(%1) {shape=[4, 3], starts=[1, 0], steps=[1, 1]} | forward "m"
%3: f32[2, 2, 3] = reshape(%2) {shape=[2, 2, 3]} | forward "m"
%4: f32[3, 2, 2] = transpose(%3) {permutation=[2, 0, 1]} | forward "m"
%5: f32[1, 3, 2, 2] = reshape(%4) {shape=[1, 3, 2, 2]} | forward "m"
%6: f32[] = full() {dtype=f32, shape=[], value=2.0} | forward "m"
%7: f32[1, 3, 2, 2] = mul(%5, %6) | forward "m"
%8: f32[3, 2, 2] = reshape(%7) {shape=[3, 2, 2]} | forward "m"
%9: f32[2, 2, 3] = transpose(%8) {permutation=[1, 2, 0]} | forward "m"
%10: f32[4, 3] = reshape(%9) {shape=[4, 3]} | forward "m"
%11: f32[5, 3] = reshape(%0) {shape=[5, 3]} | forward "m"
%12: f32[5, 3] = update_slice(%11, %10) {starts=[1, 0], steps=[1, 1]} | forward "m"
%13: f32[1, 5, 3] = reshape(%12) {shape=[1, 5, 3]} | forward "m"
update %0 = %13
)");
}

// A convolution into patches of 2 x 3, its gradients by the mask; against the sums written out.
TEST(FunctionaliseCase, PatchConvolutionsAreMatmuls) {
  const Graph graph = graph_of(R"(storage s0 bytes=96 external
storage s1 bytes=96 external
storage s2 bytes=8 external
storage s3 bytes=32
storage s4 bytes=96
storage s5 bytes=96
storage s6 bytes=8
%0: f32[1, 2, 4, 3] @s0 = batch "x"
%1: f32[2, 2, 2, 3] @s1 = parameter "w"
%2: f32[2] @s2 = parameter "b"
call 0 %3: f32[1, 2, 2, 1] @s3 = aten::convolution(%0, %1, %2, [2, 3], [0, 0], [1, 1], false, [0, 0], 1) | forward ""
call 1 %4: f32[1, 2, 4, 3] @s4; %5: f32[2, 2, 2, 3] @s5; %6: f32[2] @s6 = aten::convolution_backward(%3, %0, %1, [2], [2, 3], [0, 0], [1, 1], false, [0, 0], 1, b[true, true, true]) | backward ""
return %3, %4, %5, %6
)");
  std::vector<Array> in;
  for (const GraphInput& input : graph.inputs) {
    in.emplace_back(graph.type(input.tensor));
    for (int64_t i = 0; i < in.back().count(); ++i) in.back().set(i, static_cast<double>((i * 7) % 5) - 2);
  }
  const std::vector<Array> out = interpret(graph, in);
  Array y(out[0].type), dx(out[1].type), dw(out[2].type), db(out[3].type);
  for (bool backward : {false, true})
    for (int64_t o = 0; o < 2; ++o)
      for (int64_t row = 0; row < 2; ++row) {
        double sum = in[2].real(o);
        const double gradient = out[0].real(o * 2 + row);
        if (backward) db.set(o, db.real(o) + gradient);
        for (int64_t c = 0; c < 2; ++c)
          for (int64_t i = 0; i < 2; ++i)
            for (int64_t j = 0; j < 3; ++j) {
              const int64_t x = (c * 4 + row * 2 + i) * 3 + j;
              const int64_t w = ((o * 2 + c) * 2 + i) * 3 + j;
              sum += in[0].real(x) * in[1].real(w);
              if (backward) dx.set(x, dx.real(x) + gradient * in[1].real(w));
              if (backward) dw.set(w, dw.real(w) + gradient * in[0].real(x));
            }
        y.set(o * 2 + row, sum);
      }
  EXPECT_TRUE(same_bits(out[0], y)) << to_text(out[0]);
  EXPECT_TRUE(same_bits(out[1], dx)) << to_text(out[1]);
  EXPECT_TRUE(same_bits(out[2], dw)) << to_text(out[2]);
  EXPECT_TRUE(same_bits(out[3], db)) << to_text(out[3]);
}

}  // namespace
}  // namespace stepc
