// Products with what finishes them, beside the same in separate calls.
#include "runtime/products_call.h"

#include <random>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

using at::Tensor;

blocked::MicroKernels here() {
  blocked::MicroKernels kernels = blocked::probe_micro_kernels();
  kernels.intel = false;
  return kernels;
}

Tensor memory_for(const TensorType& type) { return at::full(type.shape, 99, scalar_type_of(type.dtype)); }

std::vector<Tensor> results_for(const Graph& group) {
  std::vector<Tensor> results;
  for (const GraphOutput& output : group.outputs) results.push_back(memory_for(group.type(output.tensor)));
  return results;
}
Tensor scratch_of(uint64_t bytes) { return at::full({static_cast<int64_t>(bytes) + 64}, 0xFF, at::kByte); }
std::byte* aligned_memory(const Tensor& scratch) {
  auto address = reinterpret_cast<uintptr_t>(scratch.mutable_data_ptr());  // NOLINT
  return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);           // NOLINT
}

std::vector<Tensor> run(const ProductsCall& call, const Graph& group, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> results = results_for(group);
  const Tensor scratch = scratch_of(call.scratch_bytes());
  call.run(inputs, results, aligned_memory(scratch));
  return results;
}

// Each product alone, then the rest as one kernel on whole tensors.
std::vector<Tensor> run_apart(const Graph& group, const std::vector<Tensor>& inputs, KernelCompiler& compiler) {
  Graph rest;
  std::vector<Tensor> read;
  std::vector<TensorId> now(group.tensors.size());
  const auto add_input = [&](TensorId tensor, const Tensor& value) {
    now[tensor.index()] = rest.add_input({InputKind::kCaptured, str("{}", read.size()), {}, value.strides().vec(), 0},
                                         group.type(tensor));
    read.push_back(value);
  };
  for (size_t i = 0; i < inputs.size(); ++i) add_input(group.inputs[i].tensor, inputs[i]);
  for (const Node& node : group.nodes) {
    if (is_product(node)) {
      const auto value = [&](TensorId id) { return read[now[id.index()].index()]; };
      add_input(node.outputs[0],
                (*run_blocked_matmul(node, {value(node.inputs[0]), value(node.inputs[1])}, here()))[0]);
      continue;
    }
    Node copy = node;
    for (TensorId& input : copy.inputs) input = now[input.index()];
    const NodeId id = rest.add_node(std::move(copy), {group.type(node.outputs[0])});
    now[node.outputs[0].index()] = rest.nodes[id.index()].outputs[0];
  }
  std::vector<Tensor> results = results_for(group);
  std::vector<Tensor> made;
  for (size_t o = 0; o < group.outputs.size(); ++o) {
    const TensorId tensor = now[group.outputs[o].tensor.index()];
    if (rest.producer(tensor) == nullptr) {
      results[o] = read[tensor.index()];
      continue;
    }
    rest.outputs.emplace_back();
    rest.outputs.back().tensor = tensor;
    made.push_back(results[o]);
  }
  if (made.empty()) return results;
  const std::shared_ptr<const Kernel> kernel = compiler.compile(lower(rest, Together::kAlike));
  std::vector<void*> buffers;
  for (const Tensor& input : read) buffers.push_back(input.data_ptr());
  for (const Tensor& output : made) buffers.push_back(output.data_ptr());
  const Tensor scratch = scratch_of(static_cast<uint64_t>(kernel->scratch_bytes));
  for (const KernelPhase& phase : kernel->phases) phase.run(buffers.data(), 0, phase.items, aligned_memory(scratch));
  return results;
}

// One to three products of one size, and elementwise nodes on them, on tensors of their size, on rows, columns and
// single numbers; some tensors lie in strides.
Graph random_group(std::mt19937_64& random, DType dtype) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const int64_t sizes[] = {1, 5, 64, 70, 128, 130, 200, 257};
  const int64_t m = sizes[below(8)], n = sizes[below(8)], k = sizes[below(8)];
  GraphBuilder b;
  const auto input = [&](const Shape& shape, DType type, bool padded = false) {
    GraphInput one{InputKind::kCaptured, str("{}", b.graph().inputs.size()), {}, {}, 0};
    if (padded) {
      one.strides = contiguous_strides(shape);
      for (size_t d = 0; d + 1 < shape.size(); ++d) one.strides[d] = one.strides[d] / shape.back() * (shape.back() + 3);
    }
    return b.graph().add_input(one, {type, shape});
  };
  const TensorId left = input({m, k}, dtype);
  std::vector<TensorId> rights, values;
  for (int64_t p = 0, count = 1 + below(3); p < count; ++p) rights.push_back(input({k, n}, dtype, below(3) == 0));
  for (TensorId right : rights) values.push_back(b.add("matmul", {left, right}));
  const std::vector<TensorId> products = values;
  for (int64_t i = 0, count = below(7); i < count; ++i) {
    const TensorId x = values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
    const TensorId y = values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
    const DType other = below(2) == 0 ? DType::kF32 : dtype;
    switch (below(7)) {
      case 0:
        values.push_back(b.add("add", {x, b.cast(y, b.dtype(x))}));
        break;
      case 1:
        values.push_back(b.add("silu", {x}));
        break;
      case 2:
        values.push_back(b.cast(x, other));
        break;
      case 3:
        values.push_back(b.add("mul", {x, b.cast(input({n}, other), b.dtype(x))}));
        break;
      case 4:
        values.push_back(b.add("sub", {b.reshape(x, {1, m, n}), b.cast(input({1, m, n}, other, true), b.dtype(x))}));
        values.back() = b.reshape(values.back(), {m, n});
        break;
      case 5:
        values.push_back(b.add("mul", {x, b.expand(b.cast(input({m, 1}, other), b.dtype(x)), {m, n})}));
        break;
      default:
        values.push_back(b.add("mul", {x, b.full(0.5, b.dtype(x))}));
    }
  }
  const auto leave = [&](TensorId tensor) {
    if (std::ranges::find(b.graph().outputs, tensor, &GraphOutput::tensor) != b.graph().outputs.end()) return;
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = tensor;
  };
  for (TensorId value : values)
    if (value == values.back() || below(3) == 0) leave(value);
  if (below(2) == 0) leave(b.sum(b.add("square", {b.cast(values.back(), DType::kF32)}), {0, 1}));
  if (!has_tail(b.graph()))  // then all of them leave
    for (TensorId product : products) leave(product);
  Graph group = b.take();
  verify_ops(group);
  return group;
}

std::vector<Tensor> random_inputs(const Graph& group) {
  std::vector<Tensor> inputs;
  for (const GraphInput& input : group.inputs) {
    const TensorType& type = group.type(input.tensor);
    const Tensor values = at::randn(type.shape).to(scalar_type_of(type.dtype));
    inputs.push_back(
        input.strides.empty() ? values : at::empty_strided(type.shape, input.strides, values.options()).copy_(values));
  }
  return inputs;
}

TEST(ProductsCall, HasTheBitsOfTheSameInSeparateCalls) {
  at::manual_seed(3);
  KernelCompiler compiler(host_cpu());
  std::mt19937_64 random(3);
  int runs = 0;
  for (int round = 0; round < 120; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBF16 : DType::kF32;
    const Graph group = random_group(random, dtype);
    SCOPED_TRACE(str("round {}\n{}", round, to_text(group)));
    if (!product_rule(here()).takes(dtype)) continue;
    ASSERT_EQ(why_no_tail(group), "");
    const ProductsCall call(group, compiler, here(), at::get_num_threads());
    ++runs;
    const std::vector<Tensor> inputs = random_inputs(group);
    const std::vector<Tensor> got = run(call, group, inputs), want = run_apart(group, inputs, compiler);
    for (size_t o = 0; o < want.size(); ++o) {
      if (want[o].dim() == 0) {  // summed in another order
        EXPECT_NEAR(got[o].item<double>() / want[o].item<double>(), 1, 1e-5) << o;
      } else {
        EXPECT_TRUE(at::equal(got[o], want[o])) << o;
      }
    }
    const std::vector<Tensor> again = run(call, group, inputs);
    for (size_t o = 0; o < got.size(); ++o) EXPECT_TRUE(at::equal(got[o], again[o])) << o;
    if (HasFailure()) return;
  }
  const int both = (product_rule(here()).bf16 ? 1 : 0) + (product_rule(here()).f32 ? 1 : 0);
  EXPECT_EQ(runs, 60 * both);
}

Graph parsed(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  return graph;
}

TEST(ProductsCall, WritesOverWhatItReadsInTheSamePlacesAlone) {
  if (!product_rule(here()).f32) GTEST_SKIP() << "no blocked f32 products here";
  const Graph group = parsed(R"(input %0: f32[150, 150] = captured "0"
input %1: f32[150, 150] = captured "1"
input %2: f32[150, 150] = captured "2"
input %3: f32[150, 150] = captured "3"
%4: f32[150, 150] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward ""
%5: f32[150, 150] = add(%4, %2) | forward ""
%6: f32[150, 150] = add(%5, %0) | forward ""
%7: f32[150, 150] = add(%6, %3) | forward ""
return %7
)");
  Graph padded = group;
  padded.inputs[3].strides = {160, 1};
  KernelCompiler compiler(host_cpu());
  const ProductsCall call(group, compiler, here(), 2);
  EXPECT_FALSE(call.may_share(0, 0)) << "other tiles read it";
  EXPECT_FALSE(call.may_share(1, 0));
  EXPECT_TRUE(call.may_share(2, 0));
  EXPECT_TRUE(call.may_share(3, 0));
  EXPECT_FALSE(ProductsCall(padded, compiler, here(), 2).may_share(3, 0));
  const std::vector<Tensor> inputs = random_inputs(group);
  const Tensor want = run(call, group, inputs)[0];
  const Tensor scratch = scratch_of(call.scratch_bytes());
  call.run(inputs, {inputs[2]}, aligned_memory(scratch));
  EXPECT_TRUE(at::equal(inputs[2], want));
}

TEST(ProductsCall, RefusesWhatTheBlockedKernelDoesNotTake) {
  KernelCompiler compiler(host_cpu());
  const Graph wide = parsed(R"(input %0: f64[4, 4] = captured "0"
%1: f64[4, 4] = matmul(%0, %0) {transpose_a=false, transpose_b=false} | forward ""
%2: f64[4, 4] = neg(%1) | forward ""
return %2
)");
  EXPECT_USER_ERROR(ProductsCall(wide, compiler, here(), 2), "no blocked product takes these operands");
}

}  // namespace
}  // namespace stepc
