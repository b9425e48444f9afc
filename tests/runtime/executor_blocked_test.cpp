// One call of each blocked kernel: beside the same in separate calls, beside ATen's, beside the interpreter.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "aten/constants.h"
#include "base/text.h"
#include "interp/evaluate.h"
#include "kernels/kernel_choice.h"
#include "loops/lower/epilogue.h"
#include "loops/lower/lower.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "runtime/aten_ops/aten_ops.h"
#include "tests/runtime/arrays.h"
#include "tests/runtime/planned_graph.h"

namespace stepc {
namespace {

using at::Tensor;
using Kind = Instruction::Kind;

// Shared, as compiled kernels are; what the library's own matmuls are made for does not count here.
KernelSources& sources() {
  static KernelSources kernels{{}};
  kernels.micro_kernels.intel = false;
  return kernels;
}
MatmulRule rule() { return matmul_rule(features_of(sources().micro_kernels)); }

Graph as_one_group(Graph graph) {
  for (Node& node : graph.nodes) node.group = 0;
  return graph;
}
void leave(Graph& graph, TensorId tensor) {
  graph.outputs.emplace_back();
  graph.outputs.back().tensor = tensor;
}

// The one instruction that a Graph is.
const Instruction& only(const test::PlannedGraph& planned) {
  EXPECT_EQ(planned.plan.schedule.instructions.size(), 1U) << to_text(planned.plan.schedule);
  return planned.plan.schedule.instructions.front();
}
// How many operands are made contiguous first; the kernel stands behind that.
size_t copies_before(const test::PlannedGraph& planned) {
  const std::vector<Instruction>& all = planned.plan.schedule.instructions;
  const auto is_copy = [](const Instruction& one) { return one.kind == Kind::kCopy; };
  return static_cast<size_t>(std::ranges::find_if_not(all, is_copy) - all.begin());
}
const Instruction& behind_copies(const test::PlannedGraph& planned) {
  return planned.plan.schedule.instructions.at(copies_before(planned));
}
std::vector<Tensor> run(const test::PlannedGraph& planned, const std::vector<Tensor>& inputs) {
  EXPECT_EQ(planned.executor->why_not(inputs), "");
  const StepResult result = planned.executor->run({inputs, {}, {}});
  EXPECT_EQ(result.memory.unplanned, 0U);
  const bool is_blocked = planned.plan.schedule.count(Kind::kOp) + planned.plan.schedule.count(Kind::kAten) == 0;
  EXPECT_TRUE(!is_blocked || result.memory.served == 0) << "a blocked kernel works in memory that it is given";
  EXPECT_LE(result.memory.arena_peak_bytes, planned.plan.schedule.arena_bytes);
  return result.outputs;
}
test::PlannedGraph planned(const Graph& graph) { return test::planned(graph, sources(), at::get_num_threads()); }

// A Graph of one node on such tensors, all of whose results leave.
Graph graph_of(std::string_view op, const Attrs& attrs, const std::vector<Tensor>& inputs) {
  GraphBuilder b;
  std::vector<TensorId> ids;
  for (const Tensor& x : inputs) {
    const GraphInput input{InputKind::kCaptured, str("{}", ids.size()), {}, x.strides().vec(), 0};
    ids.push_back(b.graph().add_input(input, {dtype_of(x.scalar_type()), x.sizes().vec()}));
  }
  for (TensorId result : b.add_all(op, ids, attrs)) leave(b.graph(), result);
  Graph graph = b.take();
  verify_ops(graph);
  return graph;
}
Attrs transposed(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

double relative_error(const Tensor& have, const Tensor& want) {
  const Tensor right = want.to(at::kDouble);
  return (have.to(at::kDouble) - right).norm().item<double>() / right.norm().item<double>();
}

// ---- matmuls and what finishes them

// Each matmul alone, then the rest as one kernel on whole tensors.
std::vector<Tensor> run_apart(const Graph& group, const std::vector<Tensor>& inputs) {
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
    if (has(node, Trait::kContraction)) {
      const std::vector<Tensor> operands = {read[now[node.inputs[0].index()].index()],
                                            read[now[node.inputs[1].index()].index()]};
      const test::PlannedGraph matmul = planned(graph_of("matmul", node.attrs, operands));
      EXPECT_EQ(only(matmul).kind, Kind::kMatmul);
      add_input(node.outputs[0], run(matmul, operands)[0]);
      continue;
    }
    Node copy = node;
    for (TensorId& input : copy.inputs) input = now[input.index()];
    const NodeId id = rest.add_node(std::move(copy), {group.type(node.outputs[0])});
    now[node.outputs[0].index()] = rest.nodes[id.index()].outputs[0];
  }
  std::vector<Tensor> results, made;
  for (const GraphOutput& output : group.outputs) {
    const TensorId tensor = now[output.tensor.index()];
    if (rest.producer(tensor) == nullptr) {
      results.push_back(read[tensor.index()]);
      continue;
    }
    leave(rest, tensor);
    results.push_back(at::empty(group.type(output.tensor).shape, scalar_type_of(group.type(output.tensor).dtype)));
    made.push_back(results.back());
  }
  if (made.empty()) return results;
  const std::shared_ptr<const Kernel> kernel = sources().compiler.compile(lower(rest, Together::kAlike));
  std::vector<void*> buffers;
  for (const Tensor& input : read) buffers.push_back(input.data_ptr());
  for (const Tensor& output : made) buffers.push_back(output.data_ptr());
  const Tensor scratch = at::empty({kernel->scratch_bytes}, at::kByte);
  for (const KernelPhase& phase : kernel->phases) phase.run(buffers.data(), 0, phase.items, scratch.data_ptr());
  return results;
}

// One to three matmuls of one size, and elementwise nodes on them, on tensors of their size, on rows, columns and
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
  const std::vector<TensorId> matmuls = values;
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
  const auto leave_once = [&](TensorId tensor) {
    if (std::ranges::find(b.graph().outputs, tensor, &GraphOutput::tensor) == b.graph().outputs.end())
      leave(b.graph(), tensor);
  };
  for (TensorId value : values)
    if (value == values.back() || below(3) == 0) leave_once(value);
  if (below(2) == 0) leave_once(b.sum(b.add("square", {b.cast(values.back(), DType::kF32)}), {0, 1}));
  if (!has_epilogue(b.graph()))  // then all of them leave
    for (TensorId matmul : matmuls) leave_once(matmul);
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

TEST(ExecutorMatmuls, HaveTheBitsOfTheSameInSeparateCalls) {
  at::manual_seed(3);
  std::mt19937_64 random(3);
  int runs = 0, epilogues = 0;
  for (int round = 0; round < 120; ++round) {
    const DType dtype = round % 2 == 0 ? DType::kBF16 : DType::kF32;
    const Graph group = random_group(random, dtype);
    SCOPED_TRACE(str("round {}\n{}", round, to_text(group)));
    if (!rule().takes(dtype)) continue;
    ASSERT_EQ(why_no_epilogue(group), "");
    const test::PlannedGraph one = planned(as_one_group(group));
    ASSERT_EQ(only(one).kind, Kind::kMatmul) << to_text(one.plan.schedule);
    EXPECT_EQ(only(one).matmul->epilogue_programs.empty(), !has_epilogue(group));
    epilogues += has_epilogue(group) ? 1 : 0;
    ++runs;
    const std::vector<Tensor> inputs = random_inputs(group);
    const std::vector<Tensor> got = run(one, inputs), want = run_apart(group, inputs);
    for (size_t o = 0; o < want.size(); ++o) {
      if (want[o].dim() == 0) {  // summed in another order
        EXPECT_NEAR(got[o].item<double>() / want[o].item<double>(), 1, 1e-5) << o;
      } else {
        EXPECT_TRUE(at::equal(got[o], want[o])) << o;
      }
    }
    const std::vector<Tensor> again = run(one, inputs);
    for (size_t o = 0; o < got.size(); ++o) EXPECT_TRUE(at::equal(got[o], again[o])) << o;
    if (HasFailure()) return;
  }
  const int both = (rule().bf16 ? 1 : 0) + (rule().f32 ? 1 : 0);
  EXPECT_EQ(runs, 60 * both);
  EXPECT_GE(epilogues, 40 * both);
}

Graph parsed(std::string_view text) {
  Graph graph = parse_graph(str("stepc.graph 1\n{}", text));
  verify_ops(graph);
  return graph;
}

// A group as its kernel will see it: its inputs with the strides of the graph's.
Graph with_strides(GroupGraph group, const Graph& graph) {
  for (size_t i = 0; i < group.inputs.size(); ++i)
    for (const GraphInput& input : graph.inputs)
      if (input.tensor == group.inputs[i]) group.graph.inputs[i].strides = input.strides;
  return group.graph;
}
uint32_t place_of(const GroupGraph& group, TensorId tensor) {
  return static_cast<uint32_t>(std::ranges::find(group.inputs, tensor) - group.inputs.begin());
}

TEST(ExecutorMatmuls, WriteOverWhatTheyReadInTheSamePlacesAlone) {
  if (!rule().f32) GTEST_SKIP() << "no blocked f32 matmuls here";
  const Graph group = as_one_group(parsed(R"(input %0: f32[150, 150] = captured "0"
input %1: f32[150, 150] = captured "1"
input %2: f32[150, 150] = captured "2"
input %3: f32[150, 150] = captured "3"
%4: f32[150, 150] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward ""
%5: f32[150, 150] = add(%4, %2) | forward ""
%6: f32[150, 150] = add(%5, %0) | forward ""
%7: f32[150, 150] = add(%6, %3) | forward ""
return %7
)"));
  const std::vector<Tensor> inputs = random_inputs(group);
  const Tensor want = run(planned(group), inputs)[0];
  for (uint32_t over = 0; over < 4; ++over)
    for (const bool padded : {false, true}) {
      Graph graph = group;
      graph.outputs[0].kind = GraphOutput::Kind::kUpdate;
      graph.outputs[0].input = over;
      std::vector<Tensor> mine;
      for (const Tensor& input : inputs) mine.push_back(input.clone());
      if (padded) {
        graph.inputs[over].strides = {160, 1};
        mine[over] = at::empty_strided({150, 150}, {160, 1}).copy_(inputs[over]);
      }
      const bool may_be = over >= 2 && !padded;  // other tiles read the matmul's own operands
      const KernelChoice choice =
          choose_kernel(extract_groups(graph)[0].graph, features_of(sources().micro_kernels), 2);
      const KernelChoice strided =
          choose_kernel(with_strides(extract_groups(graph)[0], graph), features_of(sources().micro_kernels), 2);
      const auto place = std::pair(place_of(extract_groups(graph)[0], graph.inputs[over].tensor), uint32_t{0});
      const std::vector<std::pair<uint32_t, uint32_t>>& pairs = padded ? strided.in_place : choice.in_place;
      EXPECT_EQ(std::ranges::find(pairs, place) != pairs.end(), may_be) << over << padded;
      const test::PlannedGraph one = planned(graph);
      run(one, mine);
      EXPECT_TRUE(at::equal(mine[over], want)) << over << padded;
    }
}

TEST(ExecutorMatmuls, OfWhatTheBlockedKernelDoesNotTakeRunOneByOne) {
  const Graph wide = as_one_group(parsed(R"(input %0: f64[4, 4] = captured "0"
%1: f64[4, 4] = matmul(%0, %0) {transpose_a=false, transpose_b=false} | forward ""
%2: f64[4, 4] = neg(%1) | forward ""
return %2
)"));
  const test::PlannedGraph apart = planned(wide);
  EXPECT_EQ(apart.plan.one_by_one, std::vector<std::string>{"group 0 (matmul): f64 is not for the blocked kernel"});
  EXPECT_EQ(apart.plan.schedule.count(Kind::kOp), 2U);
  const Tensor x = at::randn({4, 4}, at::kDouble);
  EXPECT_LE(relative_error(run(apart, {x})[0], -x.mm(x)), 1e-12);
}

TEST(ExecutorMatmuls, AreRightHoweverTheOperandsLie) {
  at::manual_seed(1);
  int blocked = 0;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (int lay = 0; lay < 16; ++lay) {
      const bool transpose_a = (lay & 1) != 0, transpose_b = (lay & 2) != 0, lie_a = (lay & 4) != 0,
                 lie_b = (lay & 8) != 0;
      const Tensor a = at::randn({33, 50}).to(type), b = at::randn({50, 70}).to(type);
      // Transposed in the attribute, transposed in memory, or both.
      const auto laid = [](const Tensor& x, bool transposed, bool columns) {
        const Tensor shown = transposed ? x.t() : x;
        return columns ? shown.t().contiguous().t() : shown.contiguous();
      };
      const std::vector<Tensor> operands = {laid(a, transpose_a, lie_a), laid(b, transpose_b, lie_b)};
      const test::PlannedGraph one = planned(graph_of("matmul", transposed(transpose_a, transpose_b), operands));
      const bool is_blocked = only(one).kind == Kind::kMatmul;
      EXPECT_EQ(is_blocked, type == at::kFloat ? rule().f32 : rule().bf16) << only(one).why;
      blocked += is_blocked ? 1 : 0;
      const Tensor mine = run(one, operands)[0];
      EXPECT_LE(relative_error(mine, at::mm(a.to(at::kDouble), b.to(at::kDouble))), type == at::kFloat ? 1e-6 : 4e-3)
          << lay;
      EXPECT_EQ(mine.scalar_type(), type);
    }
  EXPECT_EQ(blocked, 16 * ((rule().bf16 ? 1 : 0) + (rule().f32 ? 1 : 0)));
}

// ---- the linear layer with its cross-entropy

struct Loss {
  Attrs attrs;
  std::vector<Tensor> inputs;
};

Loss make_loss(DType dtype, size_t operands, bool frozen, bool gaps) {
  const int64_t tokens = 37, width = 24, classes = 75;
  const at::ScalarType type = scalar_type_of(dtype);
  const Tensor hidden = at::randn({width, tokens}).to(type);
  Loss one;
  one.attrs = complete_attrs(op_def("linear_cross_entropy"), {{"frozen", frozen}, {"gradient_dtype", DType::kF32}});
  // Rows that lie apart, columns that lie apart, and one gradient for all.
  one.inputs = {gaps ? hidden.t() : hidden.t().contiguous(),
                at::randn({classes, gaps ? 2 * width : width}).to(type).narrow(1, 0, width),
                at::randint(0, classes, {tokens}, at::kLong), at::full({1}, 0.5).expand({tokens}), at::randn({tokens})};
  one.inputs[2].narrow(0, 3, 9).fill_(-100);
  one.inputs.resize(operands);
  return one;
}

TEST(ExecutorLoss, IsWhatATenMakesOfTheNode) {
  at::manual_seed(1);
  const Features here = features_of(sources().micro_kernels);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool gaps : {false, true})
      for (const bool frozen : {false, true})
        for (size_t operands = 3; operands <= 5; ++operands) {
          const Loss one = make_loss(dtype, operands, frozen, gaps);
          const Graph graph = graph_of("linear_cross_entropy", one.attrs, one.inputs);
          const test::PlannedGraph mine = planned(graph);
          const bool is_blocked = dtype == DType::kF32 ? here.f32 : here.bf16;
          const Instruction& loss = behind_copies(mine);
          EXPECT_EQ(loss.kind, is_blocked ? Kind::kLoss : Kind::kOp);
          EXPECT_TRUE(!is_blocked || loss.scratch.bytes > 37U * 75 * 2) << "a row of logits a token";
          std::vector<TensorType> types;
          for (const GraphOutput& output : graph.outputs) types.push_back(graph.type(output.tensor));
          const std::vector<Tensor> got = run(mine, one.inputs);
          const std::vector<Tensor> theirs = AtenOp("linear_cross_entropy")(one.inputs, one.attrs, types);
          ASSERT_EQ(got.size(), theirs.size());
          for (size_t r = 0; r < theirs.size(); ++r) {
            ASSERT_EQ(got[r].sizes(), theirs[r].sizes());
            ASSERT_EQ(got[r].scalar_type(), theirs[r].scalar_type());
            if (theirs[r].numel() == 0) continue;
            EXPECT_LE(relative_error(got[r], theirs[r]), dtype == DType::kF32 ? 1e-5 : 2e-2)
                << "result " << r << " of " << operands;
          }
        }
}

TEST(ExecutorLoss, OfATypeWithoutAMicroKernelIsATens) {
  const Loss one = make_loss(DType::kF32, 4, false, false);
  const Graph graph = graph_of("linear_cross_entropy", one.attrs, one.inputs);
  GraphSchedule plan = schedule_graph(graph, {.features = {.bf16 = true, .avx512 = true}});
  EXPECT_EQ(plan.schedule.count(Kind::kOp), 1U);
  plan = schedule_graph(graph, {.features = {.f32 = true}});
  EXPECT_EQ(plan.schedule.count(Kind::kLoss), 1U);
}

// ---- attention

// (batch, heads, sequence, dim), side by side or, with gaps, with the sequence outermost and transposed.
Tensor heads(int64_t count, int64_t sequence, bool gaps) {
  if (!gaps) return at::randn({2, count, sequence, 8});
  return at::randn({8, sequence, 2, count}).permute({2, 3, 1, 0});
}
Array array_of(const Tensor& x) { return test::array_of(x, {dtype_of(x.scalar_type()), x.sizes().vec()}); }

TEST(ExecutorAttention, AndItsGradientsAreTheInterpreters) {
  at::manual_seed(2);
  const Attrs attrs = complete_attrs(op_def("attention"), {{"scale", 0.3}, {"causal", true}});
  for (const bool gaps : {false, true}) {
    std::vector<Tensor> x = {heads(4, 6, gaps), heads(2, 6, gaps), heads(2, 6, gaps)};
    const auto beside = [&](std::string_view op, const std::vector<Tensor>& inputs, size_t copies) {
      const test::PlannedGraph one = planned(graph_of(op, attrs, inputs));
      EXPECT_EQ(behind_copies(one).kind, Kind::kAttention);
      EXPECT_EQ(copies_before(one), copies);
      const std::vector<Tensor> have = run(one, inputs);
      std::vector<Array> operands;
      for (const Tensor& input : inputs) operands.push_back(array_of(input));
      const std::vector<Array> want = evaluate(op_def(op), operands, attrs);
      for (size_t r = 0; r < want.size(); ++r)
        EXPECT_LE(largest_error(array_of(have[r]), want[r]), 1e-5) << op << " result " << r << " gaps " << gaps;
      return have;
    };
    const std::vector<Tensor> made = beside("attention", x, gaps ? 3 : 0);
    x.insert(x.begin(), heads(4, 6, gaps));
    x.insert(x.end(), made.begin(), made.end());
    beside("attention_backward", x, gaps ? 4 : 0);
  }
}

}  // namespace
}  // namespace stepc
