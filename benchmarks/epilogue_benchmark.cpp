// Matmuls finished where they are made beside the same in separate kernels, bf16, tensors of a 134M step that caches
// do not hold: epilogue_benchmark [threads] [rounds]. One line an epilogue: the median of the paired ratios, above 1
// where finishing tiles is faster. What fuse (passes/fusion/fuse.cpp) takes for an epilogue comes from it.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "aten/cpu_hook.h"
#include "base/check.h"
#include "benchmarks/stopwatch.h"
#include "runtime/executor.h"
#include "schedule/from_graph.h"

namespace {

using namespace stepc;

struct Example {
  const char* name;
  size_t matmuls;  // the first nodes
  const char* text;
};
constexpr Example kExamples[] = {
    {"sum of a gradient's squares", 1, R"(stepc.graph 1
input %0: bf16[2048, 768] = captured "0"
input %1: bf16[2048, 2048] = captured "1"
%2: bf16[768, 2048] = matmul(%0, %1) {transpose_a=true, transpose_b=false} | backward ""
%3: f32[768, 2048] = cast(%2) {dtype=f32} | update ""
%4: f32[768, 2048] = square(%3) | update ""
%5: f32[] = sum(%4) {dims=[0, 1], keepdim=false} | update ""
return %2
return %5
)"},
    {"bias", 1, R"(stepc.graph 1
input %0: bf16[2048, 768] = captured "0"
input %1: bf16[2048, 768] = captured "1"
input %2: bf16[2048] = captured "2"
%3: bf16[2048, 2048] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward ""
%4: bf16[2048, 2048] = add(%3, %2) | forward ""
return %4
)"},
    {"bias and gelu, both kept", 1, R"(stepc.graph 1
input %0: bf16[2048, 768] = captured "0"
input %1: bf16[2048, 768] = captured "1"
input %2: bf16[2048] = captured "2"
%3: bf16[2048, 2048] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward ""
%4: bf16[2048, 2048] = add(%3, %2) | forward ""
%5: bf16[2048, 2048] = gelu(%4) | forward ""
return %4
return %5
)"},
    {"residual", 1, R"(stepc.graph 1
input %0: bf16[2048, 2048] = captured "0"
input %1: bf16[768, 2048] = captured "1"
input %2: bf16[2048, 768] = captured "2"
%3: bf16[2048, 768] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward ""
%4: bf16[2048, 768] = add(%3, %2) | forward ""
return %4
)"},
    {"gate of two, all kept", 2, R"(stepc.graph 1
input %0: bf16[2048, 768] = captured "0"
input %1: bf16[2048, 768] = captured "1"
input %2: bf16[2048, 768] = captured "2"
%3: bf16[2048, 2048] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward ""
%4: bf16[2048, 2048] = matmul(%0, %2) {transpose_a=false, transpose_b=true} | forward ""
%5: bf16[2048, 2048] = silu(%3) | forward ""
%6: bf16[2048, 2048] = mul(%5, %4) | forward ""
return %3
return %4
return %6
)"},
    {"the gate's gradients", 1, R"(stepc.graph 1
input %0: bf16[2048, 768] = captured "0"
input %1: bf16[768, 2048] = captured "1"
input %2: bf16[2048, 2048] = captured "2"
input %3: bf16[2048, 2048] = captured "3"
input %4: bf16[2048, 2048] = captured "4"
%5: bf16[2048, 2048] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | backward ""
%6: bf16[2048, 2048] = mul(%5, %2) | backward ""
%7: bf16[2048, 2048] = mul(%5, %3) | backward ""
%8: bf16[2048, 2048] = silu_backward(%7, %4) | backward ""
return %6
return %8
)"},
};
constexpr size_t kCopies = 6;  // of all tensors, in turn: more than caches hold

at::Tensor tensor_for(const TensorType& type) { return at::randn(type.shape).to(scalar_type_of(type.dtype)); }

// The epilogue as one group, or its matmuls and the rest as one each. What leaves either of them is written into the
// program's memory, so that no run asks for any.
Graph grouped(const Example& example, bool together) {
  Graph graph = parse_graph(example.text);
  for (size_t n = 0; n < graph.nodes.size(); ++n) graph.nodes[n].group = together || n < example.matmuls ? 0 : 1;
  std::vector<TensorId> left;
  for (const GroupGraph& group : extract_groups(graph))
    for (TensorId tensor : group.outputs) left.push_back(tensor);
  graph.outputs.clear();
  for (TensorId tensor : left) {
    GraphOutput& output = graph.outputs.emplace_back();
    output.kind = GraphOutput::Kind::kUpdate;
    output.tensor = tensor;
    output.input = static_cast<uint32_t>(graph.inputs.size());
    graph.add_input({InputKind::kCaptured, str("result {}", tensor), {}, {}, 0}, graph.type(tensor));
  }
  return graph;
}

// A Graph with memory for everything, several times.
class Case {
 public:
  Case(const Graph& graph, KernelSources& kernels, size_t instructions) {
    GraphSchedule plan =
        schedule_graph(graph, {.features = features_of(kernels.micro_kernels), .threads = at::get_num_threads()});
    INTERNAL_CHECK_EQ(plan.schedule.instructions.size(), instructions, "{}", to_text(plan.schedule));
    executor_ = std::make_unique<Executor>(std::move(plan.schedule), &kernels);
    for (std::vector<at::Tensor>& copy : inputs_)
      for (const GraphInput& input : graph.inputs) copy.push_back(tensor_for(graph.type(input.tensor)));
  }
  void run(size_t copy) { executor_->run({inputs_[copy], {}, {}}); }

 private:
  std::unique_ptr<Executor> executor_;
  std::array<std::vector<at::Tensor>, kCopies> inputs_;
};

void compare(const Example& example, KernelSources& kernels, int rounds) {
  Case together(grouped(example, true), kernels, 1);
  Case apart(grouped(example, false), kernels, 2);
  std::vector<double> finished, separate, ratios;
  for (int round = -1; round < rounds; ++round) {
    double seconds[2] = {0, 0};
    for (size_t copy = 0; copy < kCopies; ++copy) {
      seconds[0] += seconds_of([&] { together.run(copy); });
      seconds[1] += seconds_of([&] { apart.run(copy); });
    }
    if (round < 0) continue;
    finished.push_back(seconds[0] / kCopies);
    separate.push_back(seconds[1] / kCopies);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  std::printf("%-28s %10.3f %10.3f %8.2f\n", example.name, median(finished) * 1e3, median(separate) * 1e3,
              median(ratios));
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  at::set_num_threads(threads);
  at::manual_seed(0);
  install_cpu_hook();
  KernelSources kernels{{}};
  if (!matmul_rule(features_of(kernels.micro_kernels)).bf16)
    return std::puts("no blocked bf16 matmuls on this machine"), 0;
  std::printf("%-28s %10s %10s %8s\n", "epilogue of a bf16 matmul", "tiles ms", "apart ms", "faster");
  for (const Example& example : kExamples) compare(example, kernels, rounds);
  return 0;
}
