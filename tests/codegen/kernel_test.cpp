// Kernels of groups that occur in training steps, on this CPU and on the plainest one, against the interpreter.
#include <random>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "tests/codegen/run_kernel.h"

namespace stepc {
namespace {

std::vector<Array> random_arrays(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Array> out;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    for (int64_t i = 0; i < array.count(); ++i) {
      if (array.is_real())
        array.set(i, normal(random));
      else
        array.set(i, static_cast<int64_t>(random() % 5));
    }
    out.push_back(std::move(array));
  }
  return out;
}

// The text of the nodes alone; every input is captured and numbered.
Graph group_of(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  return graph;
}

void expect_like_interpreter(const Graph& group, double tolerance, uint64_t seed = 1) {
  ASSERT_EQ(why_not(group), "") << to_text(group);
  const std::vector<Array> inputs = random_arrays(group, seed);
  std::vector<Array> wide;
  for (const Array& input : inputs) wide.push_back(input.is_real() ? in_double(input) : input);
  const std::vector<Array> want = interpret(in_double(group), wide);
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    const std::vector<Array> have = run_kernel(compiler, group, inputs);
    for (size_t i = 0; i < want.size(); ++i) {
      Array got = have[i].is_real() ? in_double(have[i]) : have[i];
      EXPECT_LE(largest_error(got, want[i]), tolerance) << target.name << " output " << i << "\n"
                                                        << to_text(lower(group)) << to_text(got) << to_text(want[i]);
    }
    for (Cuts cuts : {Cuts::kSingle, Cuts::kUneven}) {
      const std::vector<Array> again = run_kernel(compiler, group, inputs, cuts);
      for (size_t i = 0; i < have.size(); ++i) EXPECT_TRUE(same_bits(have[i], again[i])) << target.name << " " << i;
    }
  }
}

TEST(Kernel, Pointwise) {
  expect_like_interpreter(group_of(R"(input %0: f32[5, 67] = captured "0"
input %1: f32[67] = captured "1"
%2: f32[5, 67] = mul(%0, %1) | forward ""
%3: f32[5, 67] = silu(%2) | forward ""
%4: f32[5, 67] = add(%3, %0) | forward ""
return %4
return %3
)"),
                          1e-6);
}

TEST(Kernel, RowsOfSoftmax) {
  for (int64_t columns : {1, 3, 16, 67, 200}) {
    GraphBuilder b;
    const TensorId x = b.graph().add_input({InputKind::kCaptured, "0", {}, {}, 0}, {DType::kF32, {7, columns}});
    const TensorId top = b.add("max", {x}, {{"dims", Shape{1}}, {"keepdim", true}});
    const TensorId weights = b.add("exp", {b.add("sub", {x, top})});
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = b.add("div", {weights, b.sum(weights, {1}, true)});
    expect_like_interpreter(b.take(), 1e-6);
  }
}

}  // namespace
}  // namespace stepc
