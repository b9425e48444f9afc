// Every pass of the table on text (tests/passes/<pass>.ir) and on random graphs, whose meaning it keeps bit by bit.
#include "passes/pass.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "interp/interpret.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/rewrite/dead_code.h"
#include "passes/rewrite/decompose.h"
#include "tests/expect_user_error.h"
#include "tests/schedule/random_step.h"

namespace stepc {
namespace {

struct Case {
  std::string name, before, after;
};

// Cases of one file: "# name", text, "=>", text; without the head line.
std::vector<Case> cases_of(const std::string& path) {
  std::vector<Case> out;
  std::string* text = nullptr;
  for (const std::string& line : split(read_text(path, 1 << 20), '\n')) {
    if (line.starts_with("# ")) {
      out.push_back({line.substr(2), "stepc.graph 1\n", "stepc.graph 1\n"});
      text = &out.back().before;
    } else if (line == "=>") {
      text = &out.back().after;
    } else if (!line.empty()) {
      *text += line + "\n";
    }
  }
  return out;
}

// As few bytes as can be, f32 matmuls on the blocked kernel, and exchanges in two parts.
const PassSettings kSettings = {
    .matmuls = {.f32 = true}, .recompute = RecomputeOptions{.budget_bytes = 0}, .exchange_parts = 2};

// Nodes that a pass leaves without use are not shown in the expected text.
TEST(Pass, TextInTextOut) {
  for (const Pass& pass : pass_table()) {
    const std::vector<Case> cases = cases_of(str("{}/tests/passes/{}.ir", STEPC_SOURCE_DIR, pass.name));
    EXPECT_FALSE(cases.empty()) << pass.name;
    for (const Case& one : cases) {
      SCOPED_TRACE(str("{}: {}", pass.name, one.name));
      Graph graph = parse_graph(one.before);
      verify_ops(graph);
      PassSettings settings = kSettings;
      settings.strategy.mesh = graph.mesh;
      settings.strategy.overlap_bytes = kOverlapBytes;
      settings.is_for_gpu = pass.name == "sum_matmuls";
      settings.fp8 = one.name.ends_with("rowwise") ? Fp8Recipe::kRowwise : Fp8Recipe::kTensorwise;
      graph = pass.run(std::move(graph), settings);
      verify_stage(graph, pass.out);
      EXPECT_EQ(to_text(dead_code(std::move(graph))), one.after);
    }
  }
}

// Logits of x and y, their cross-entropy a row, and what becomes of it backwards: with label smoothing, or without; a
// gradient that the loss decides is one that no pass can know before.
void add_loss(GraphBuilder& b, TensorId x, TensorId y, uint64_t choice) {
  const int64_t rows = b.shape(x)[0];
  const int64_t classes = b.shape(y)[0];
  const auto leave = [&](TensorId tensor) {
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = tensor;
  };
  const TensorId logits =
      choice % 2 == 0 ? b.add("matmul", {x, y}, {{"transpose_b", true}}) : b.add("matmul", {x, b.transpose(y, {1, 0})});
  const TensorId logp = b.add("log_softmax", {logits}, {{"dim", int64_t{1}}});
  const int64_t label = choice / 4 - 1;
  const TensorId target = b.full(static_cast<double>(label), DType::kI64, {rows});
  const Attrs ignored = {{"ignore_index", int64_t{-1}}};
  const std::vector<TensorId> loss = b.add_all("nll_loss", {logp, target}, ignored);
  leave(loss[0]);
  TensorId share = b.add("div", {b.full(2, DType::kF32), b.sum(b.cast(loss[1], DType::kF32), {0})});
  if (choice % 4 == 3) share = b.add("mul", {share, b.sum(loss[0], {0})});
  TensorId gradient = b.add("nll_loss_backward", {b.expand(share, {rows}), target},
                            {{"ignore_index", int64_t{-1}}, {"classes", classes}});
  if (choice % 4 == 2) {
    leave(b.sum(logp, {1}));
    gradient = b.add("add", {b.full(0.25, DType::kF32, {rows, 1}), gradient});
  }
  gradient = b.add("log_softmax_backward", {gradient, logp}, {{"dim", int64_t{1}}});
  leave(b.add("matmul", {gradient, x}, {{"transpose_a", true}}));
  leave(b.add("matmul", {gradient, y}));
}

// A random graph of arithmetic, views, reductions, constants, composites and losses on small tensors, in one phase or
// in two.
Graph random_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  GraphBuilder b;
  std::vector<TensorId> values;
  for (size_t i = 0, n = 1 + below(3); i < n; ++i) {
    Shape shape;
    for (size_t d = 0, rank = 1 + below(3); d < rank; ++d) shape.push_back(static_cast<int64_t>(1 + below(3)));
    const DType dtype = below(4) == 0 ? DType::kBF16 : DType::kF32;
    values.push_back(b.graph().add_input({InputKind::kBatch, str("{}", i), {}, {}, 0}, {dtype, shape}));
  }
  if (below(2) == 0) values.push_back(b.full(0.3, DType::kF32, {2, 3}));
  const auto any = [&] { return values[below(values.size())]; };
  for (size_t step = 0; step < 25; ++step) {
    if (step == 14 && seed % 2 == 0) b.set_source({Phase::kBackward, ""});
    const TensorId x = any();
    const Shape shape = b.shape(x);
    const auto rank = static_cast<int64_t>(shape.size());
    const auto dim = static_cast<size_t>(rank == 0 ? 0 : below(static_cast<size_t>(rank)));
    TensorId made = x;
    switch (below(14)) {
      case 0:
      case 1: {
        constexpr std::string_view kUnary[] = {"neg", "abs", "exp", "tanh", "square", "silu", "relu"};
        made = b.add(kUnary[below(std::size(kUnary))], {x});
        break;
      }
      case 2:
      case 3: {
        constexpr std::string_view kBinary[] = {"add", "sub", "mul", "maximum"};
        const TensorId y = any();
        if (b.shape(y) != shape || b.dtype(y) != b.dtype(x)) continue;
        made = b.add(kBinary[below(std::size(kBinary))], {x, y});
        break;
      }
      case 4:
      case 5: {
        constexpr std::string_view kBinary[] = {"add", "sub", "mul", "div", "pow"};
        constexpr double kValues[] = {0, -0.0, 1, 2, -1, 4, 0.3};
        const std::string_view op = kBinary[below(std::size(kBinary))];
        const TensorId number = b.full(kValues[below(std::size(kValues))], b.dtype(x), below(2) == 0 ? Shape() : shape);
        made = below(3) == 0 ? b.add(op, {number, x}) : b.add(op, {x, number});
        break;
      }
      case 6: {
        Shape permutation(shape.size());
        for (size_t d = 0; d < shape.size(); ++d) permutation[d] = static_cast<int64_t>(d);
        std::shuffle(permutation.begin(), permutation.end(), random);
        made = b.transpose(x, permutation);
        break;
      }
      case 7:
        made = b.reshape(x, below(2) == 0 ? Shape{element_count(shape)} : Shape{1, element_count(shape), 1});
        break;
      case 8: {
        Shape wide = shape;
        for (int64_t& size : wide)
          if (size == 1) size = static_cast<int64_t>(1 + below(2));
        made = b.expand(x, wide);
        break;
      }
      case 9: {
        if (rank == 0) continue;
        Shape starts(shape.size(), 0);
        Shape sizes = shape;
        starts[dim] = static_cast<int64_t>(below(static_cast<size_t>(shape[dim])));
        sizes[dim] = shape[dim] - starts[dim];
        made = b.slice(x, starts, sizes, Shape(shape.size(), 1));
        break;
      }
      case 10:
        if (rank == 0) continue;
        made = b.add(below(2) == 0 ? "sum" : "mean", {x},
                     {{"dims", Shape{static_cast<int64_t>(dim)}}, {"keepdim", below(2) == 0}});
        break;
      case 11:
        made = b.cast(x, b.dtype(x) == DType::kF32 ? DType::kBF16 : DType::kF32);
        break;
      case 12: {
        const TensorId y = any();
        if (rank == 0 || b.shape(y) != shape || b.dtype(y) != b.dtype(x)) continue;
        made = b.add("concat", {x, y}, {{"dim", static_cast<int64_t>(dim)}});
        break;
      }
      default: {
        const TensorId y = any();
        if (rank != 2 || b.shape(y).size() != 2 || b.dtype(y) != b.dtype(x)) continue;
        const bool ta = below(2) == 0;
        const bool tb = below(2) == 0;
        if (shape[ta ? 0 : 1] != b.shape(y)[tb ? 1 : 0]) continue;
        made = b.add("matmul", {x, y}, {{"transpose_a", ta}, {"transpose_b", tb}});
      }
    }
    if (element_count(b.shape(made)) <= 200) values.push_back(made);
  }
  for (int i = 0; i < 4; ++i) {
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = any();
  }
  const TensorId x = any();
  const auto fits = [&](TensorId y) {
    return b.dtype(y) == DType::kF32 && b.shape(y).size() == 2 && b.shape(x).size() == 2 &&
           b.shape(x)[1] == b.shape(y)[1];
  };
  const auto y = std::ranges::find_if(values, fits);
  if (b.dtype(x) == DType::kF32 && y != values.end()) add_loss(b, x, *y, below(8));
  return b.take();
}

// And the rows of what leaves that the program chooses.
Graph with_look_ups(Graph graph) {
  GraphBuilder b(std::move(graph));
  const TensorId rows = b.graph().add_input({InputKind::kBatch, "rows", {}, {}, 0}, {DType::kI64, {2}});
  for (size_t o = 0, count = b.graph().outputs.size(); o < count; ++o) {
    const TensorId from = b.graph().outputs[o].tensor;
    if (b.shape(from).empty()) continue;
    const TensorId taken = b.add("take", {from, rows}, {{"dim", int64_t{0}}});
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = taken;
  }
  return b.take();
}

// Integers choose the first row.
std::vector<Array> random_inputs(const Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr double kValues[] = {0.0, -0.0, 1.0, -1.5, 0.3, 2.0, -0.25, 7.0};
  std::vector<Array> out;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    for (int64_t i = 0; array.is_real() && i < array.count(); ++i) array.set(i, kValues[random() % std::size(kValues)]);
    out.push_back(std::move(array));
  }
  return out;
}

void expect_same_meaning(const Graph& before, const Graph& after, uint64_t seed) {
  const std::vector<Array> inputs = random_inputs(before, seed);
  const std::vector<Array> want = interpret(before, inputs);
  const std::vector<Array> have = interpret(after, inputs);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(same_bits(have[i], want[i])) << "output " << i << " of seed " << seed << " was " << to_text(want[i])
                                             << " and is " << to_text(have[i]) << "\n"
                                             << to_text(before) << to_text(after);
}

TEST(Pass, KeepsTheMeaningOfRandomGraphs) {
  for (const Pass& pass : pass_table()) {
    if (pass.name == "recompute") continue;  // needs a backward pass: recompute_test.cpp
    if (pass.name == "fp8") continue;        // computes something else, where it is asked to
    const bool needs_mesh = pass.name == "propagate_shardings" || pass.name == "partition" ||
                            pass.name == "merge_collectives" || pass.name == "cut_exchanges" ||
                            pass.name == "split_collectives";
    if (pass.name == "sum_matmuls") continue;     // of GPUs alone
    if (needs_mesh) continue;                     // tests of their own: partition_test.cpp and so on
    if (pass.name == "find_documents") continue;  // needs a mask of documents: find_documents_test.cpp
    int changed = 0;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      Graph before = random_graph(seed);
      if (pass.name == "check_indices") before = with_look_ups(std::move(before));
      if (pass.in != Stage::kCaptured) before = decompose(std::move(before));
      const Graph after = pass.run(before, {});
      verify_stage(after, pass.out);
      changed += after == before ? 0 : 1;
      expect_same_meaning(before, after, seed);
      if (HasFatalFailure()) FAIL() << pass.name;
      EXPECT_TRUE(pass.run(after, {}) == after) << pass.name << " finds more to do the second time, seed " << seed;
    }
    EXPECT_GT(changed, 30) << pass.name;
  }
}

TEST(Pass, WholePipelineKeepsTheMeaningOfRandomGraphs) {
  for (uint64_t seed = 1000; seed < 1500; ++seed) {
    const Graph before = seed % 3 == 0 ? with_look_ups(random_graph(seed)) : random_graph(seed);
    RunOptions options;
    options.verify = true;
    options.settings.matmuls.f32 = seed % 2 == 0;
    expect_same_meaning(before, run_passes(before, options).graph, seed);
    if (HasFatalFailure()) return;
  }
}

// Host code is given and finds the same, and what follows sees what it has changed: everything is halved.
TEST(Pass, WholePipelineKeepsTheMeaningOfInterruptedSteps) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph before = test::random_step(seed, /*interrupted=*/true);
    RunOptions options;
    options.verify = true;
    options.settings.matmuls.f32 = seed % 2 == 0;
    const Graph after = run_passes(before, options).graph;
    const std::vector<Array> inputs = random_inputs(before, seed);
    const auto run = [&](const Graph& graph) {
      std::vector<Array> of_graph, seen;
      for (const GraphInput& input : graph.inputs)
        for (size_t i = 0; i < inputs.size(); ++i)
          if (before.inputs[i].kind == input.kind && before.inputs[i].key == input.key) of_graph.push_back(inputs[i]);
      const auto halve = [&](const HostCode& code, const std::vector<Array>& given, std::vector<Array>& slots) {
        seen.emplace_back(TensorType{DType::kI64, {}}).set(0, int64_t{code.event});
        seen.insert(seen.end(), given.begin(), given.end());
        seen.insert(seen.end(), slots.begin(), slots.end());
        for (Array& slot : slots)
          for (int64_t k = 0; k < slot.count(); ++k) slot.set(k, 0.5 * slot.real(k));
      };
      const std::vector<Array> outputs = interpret(graph, of_graph, halve);
      seen.insert(seen.end(), outputs.begin(), outputs.end());
      return seen;
    };
    const std::vector<Array> want = run(before), have = run(after);
    ASSERT_LE(want.size(), have.size());  // guards come behind
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_TRUE(same_bits(have[i], want[i])) << "place " << i << " of seed " << seed << "\n"
                                               << to_text(before) << to_text(after);
  }
}

// One norm over all gradients, as clipping takes it, and an update of each parameter behind it.
Graph clipped_step(size_t parameters) {
  GraphBuilder b;
  std::vector<TensorId> weights, gradients, norms;
  for (size_t i = 0; i < parameters; ++i)
    weights.push_back(b.graph().add_input({InputKind::kParameter, str("{}", i), {}, {}, 0}, {DType::kF32, {3, 2}}));
  b.set_source({Phase::kBackward, ""});
  for (TensorId weight : weights) {
    gradients.push_back(b.add("sin", {weight}));
    norms.push_back(b.reshape(b.add("sqrt", {b.sum(b.add("square", {gradients.back()}), {0, 1})}), {1}));
  }
  b.set_source({Phase::kUpdate, ""});
  const TensorId all = b.add("concat", norms, {{"dim", int64_t{0}}});
  const TensorId norm = b.add("sqrt", {b.sum(b.add("square", {all}), {0})});
  const TensorId scale = b.add("minimum", {b.add("div", {b.full(1, DType::kF32), norm}), b.full(1, DType::kF32)});
  for (size_t i = 0; i < parameters; ++i) {
    GraphOutput update;
    update.kind = GraphOutput::Kind::kUpdate;
    update.input = static_cast<uint32_t>(i);
    update.tensor = b.add("sub", {weights[i], b.add("mul", {gradients[i], scale})});
    b.graph().outputs.push_back(update);
  }
  return b.take();
}

TEST(Pipeline, TakesAnyNumberOfParameters) {
  const Graph before = clipped_step(1100);
  RunOptions options;
  options.verify = true;
  const Graph after = run_passes(before, options).graph;
  EXPECT_EQ(parse_graph(to_text(after)), after);
  expect_same_meaning(before, after, 5);
}

TEST(Pipeline, RunsTheTableOrWhatIsAskedFor) {
  const Graph graph = random_graph(3);
  const RunResult all = run_passes(graph);
  ASSERT_EQ(all.runs.size(), pass_table().size());
  EXPECT_EQ(all.runs.back().nodes, all.graph.nodes.size());

  RunOptions options;
  options.only = {"dead_code", "simplify"};
  std::vector<std::string> seen;
  options.after = [&](std::string_view pass, const Graph&) { seen.emplace_back(pass); };
  EXPECT_EQ(run_passes(graph, options).runs.size(), 2U);
  EXPECT_EQ(seen, options.only);
  options.without = {"simplify"};
  EXPECT_EQ(run_passes(graph, options).runs.size(), 1U);
  options.only = {"simplfy"};
  EXPECT_USER_ERROR(run_passes(graph, options), "no pass is named 'simplfy'; did you mean 'simplify'?");
}

TEST(Pipeline, StageCoreAllowsNoComposite) {
  GraphBuilder b;
  const TensorId x = b.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF32, {2}});
  b.add("softmax", {x}, {{"dim", int64_t{0}}});
  EXPECT_NO_THROW(verify_stage(b.graph(), Stage::kCaptured));
  EXPECT_THROW(verify_stage(b.graph(), Stage::kCore), InternalError);
}

// Each row of the table has what it takes where it stands, and says so where it has not.
TEST(Pipeline, APassTakesWhatItsRowSays) {
  GraphBuilder b;
  const TensorId x = b.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF32, {2}});
  b.graph().outputs.emplace_back();
  b.graph().outputs.back().tensor = b.add("exp", {b.add("softmax", {x}, {{"dim", int64_t{0}}})});
  const Graph captured = b.take();
  const Graph core = run_passes(captured, {.only = {"decompose"}}).graph;
  const Graph fused = run_passes(core, {.only = {"fuse"}}).graph;
  ASSERT_TRUE(std::ranges::any_of(fused.nodes, [](const Node& node) { return node.group.has_value(); }));
  for (const Pass& pass : pass_table()) {
    const auto refuses = [&](const Graph& graph, std::string_view why) {
      try {
        run_passes(graph, {.only = {std::string(pass.name)}});
        return false;
      } catch (const InternalError& error) {
        EXPECT_NE(std::string_view(error.what()).find(str("{}: {}", pass.name, why)), std::string_view::npos)
            << error.what();
        return true;
      }
    };
    EXPECT_EQ(refuses(captured, str("node 0 softmax is a composite in a {} graph", name_of(pass.in))),
              pass.in != Stage::kCaptured)
        << pass.name;
    EXPECT_FALSE(refuses(core, "")) << pass.name;
    EXPECT_EQ(refuses(fused, str("node 0 {} is in group 0 of a {} graph", fused.nodes[0].op, name_of(pass.in))),
              pass.in != Stage::kFused)
        << pass.name;
  }
  EXPECT_NO_THROW(run_passes(captured));
  EXPECT_THROW(run_passes(captured, {.without = {"decompose"}}), InternalError);
}

TEST(Pipeline, PageIsFresh) {
  EXPECT_EQ(read_text(STEPC_SOURCE_DIR "/docs/passes.md", 1 << 20), passes_page())
      << "run: irtool --passes > docs/passes.md";
}

}  // namespace
}  // namespace stepc
