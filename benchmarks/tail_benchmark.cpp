// Products finished where they are made beside the same in separate kernels, bf16, tensors of a 134M step that caches
// do not hold: tail_benchmark [threads] [rounds]. One line a tail: the median of the paired ratios, above 1 where
// finishing tiles is faster. What fuse (passes/fuse.cpp) takes for a tail comes from it.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "base/check.h"
#include "benchmarks/stopwatch.h"
#include "ops/op_def.h"
#include "runtime/kernel_call.h"
#include "runtime/products_call.h"

namespace {

using namespace stepc;

struct Tail {
  const char* name;
  size_t products;  // the first nodes
  const char* text;
};
constexpr Tail kTails[] = {
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

// A part of a group with memory for everything, several times.
template <class Call>
struct Part {
  Call call;
  std::vector<std::vector<at::Tensor>> inputs, outputs;  // by copy
  at::Tensor scratch;

  void run(size_t copy) const {
    call.run(inputs[copy], outputs[copy], static_cast<std::byte*>(scratch.mutable_data_ptr()));
  }
};
template <class Call>
Part<Call> part(Call call, const Graph& group, const std::vector<std::vector<at::Tensor>>& inputs) {
  const auto bytes = static_cast<int64_t>(call.scratch_bytes());  // PyTorch aligns tensors to cache lines
  Part<Call> out{std::move(call), inputs, {}, at::empty({bytes}, at::kByte)};
  for (size_t copy = 0; copy < kCopies; ++copy) {
    std::vector<at::Tensor>& outputs = out.outputs.emplace_back();
    for (const GraphOutput& output : group.outputs) outputs.push_back(tensor_for(group.type(output.tensor)));
  }
  return out;
}

// The group's nodes [begin, end) as a group of their own; what they read and what the rest or the caller reads of them.
GroupGraph some_nodes(Graph whole, size_t begin, size_t end) {
  for (size_t n = begin; n < end; ++n) whole.nodes[n].group = 0;
  return extract_groups(whole).at(0);
}

void compare(const Tail& tail, KernelCompiler& compiler, const blocked::MicroKernels& kernels, int rounds) {
  const int threads = at::get_num_threads();
  const Graph group = parse_graph(tail.text);
  const GroupGraph products = some_nodes(group, 0, tail.products);
  const GroupGraph rest = some_nodes(group, tail.products, group.nodes.size());
  std::vector<std::vector<at::Tensor>> inputs(kCopies), of_products(kCopies), of_rest(kCopies);
  for (size_t copy = 0; copy < kCopies; ++copy) {
    for (const GraphInput& input : group.inputs) inputs[copy].push_back(tensor_for(group.type(input.tensor)));
    for (TensorId tensor : products.inputs) of_products[copy].push_back(inputs[copy].at(tensor.index()));
  }
  const Part<ProductsCall> together = part(ProductsCall(group, compiler, kernels, threads), group, inputs);
  const Part<ProductsCall> alone =
      part(ProductsCall(products.graph, compiler, kernels, threads), products.graph, of_products);
  for (size_t copy = 0; copy < kCopies; ++copy)
    for (TensorId tensor : rest.inputs) {
      const auto made = std::ranges::find(products.outputs, tensor);
      of_rest[copy].push_back(made == products.outputs.end()
                                  ? inputs[copy].at(tensor.index())
                                  : alone.outputs[copy].at(static_cast<size_t>(made - products.outputs.begin())));
    }
  const Part<KernelCall> after = part(KernelCall(rest.graph, compiler), rest.graph, of_rest);

  std::vector<double> finished, separate, ratios;
  for (int round = -1; round < rounds; ++round) {
    double seconds[2] = {0, 0};
    for (size_t copy = 0; copy < kCopies; ++copy) {
      seconds[0] += seconds_of([&] { together.run(copy); });
      seconds[1] += seconds_of([&] {
        alone.run(copy);
        after.run(copy);
      });
    }
    if (round < 0) continue;
    finished.push_back(seconds[0] / kCopies);
    separate.push_back(seconds[1] / kCopies);
    ratios.push_back(seconds[1] / seconds[0]);
  }
  std::printf("%-28s %10.3f %10.3f %8.2f\n", tail.name, median(finished) * 1e3, median(separate) * 1e3, median(ratios));
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  at::set_num_threads(threads);
  at::manual_seed(0);
  const blocked::MicroKernels kernels = blocked::probe_micro_kernels();
  if (!product_rule(kernels).bf16) return std::puts("no blocked bf16 products on this machine"), 0;
  KernelCompiler compiler(host_cpu());
  std::printf("%-28s %10s %10s %8s\n", "tail of a bf16 product", "tiles ms", "apart ms", "faster");
  for (const Tail& tail : kTails) compare(tail, compiler, kernels, rounds);
  return 0;
}
