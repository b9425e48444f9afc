// The partitioner on virtual ranks: every rule of the op table, and random steps on random meshes.
#include "passes/partition/partition.h"

#include <random>

#include <gtest/gtest.h>

#include "base/text.h"
#include "interp/evaluate.h"
#include "ops/communication.h"
#include "ops/graph_builder.h"
#include "passes/fp8.h"
#include "passes/partition/seeds.h"
#include "passes/partition/shardings/splits.h"
#include "passes/rewrite/dead_code.h"
#include "passes/rewrite/decompose.h"
#include "tests/expect_user_error.h"
#include "tests/interp/random_inputs.h"
#include "tests/ops/op_examples.h"
#include "tests/passes/run_partitioned.h"

namespace stepc {
namespace {

// A graph of one call, whose operands and results lie as `splits` of its rule's factors say.
Graph one_call(const OpDef& op, const test::Example& example, const std::vector<Split>& splits, const Mesh& mesh) {
  GraphBuilder b;
  b.graph().mesh = mesh;
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < example.inputs.size(); ++i)
    inputs.push_back(b.graph().add_input({InputKind::kBatch, str("{}", i), {}, {}, 0}, example.inputs[i]));
  const std::vector<TensorId> results = b.add_all(op.name, inputs, example.attrs);
  const ShardingRule rule = sharding_rule_of(b.graph(), b.graph().nodes.back());
  const auto place = [&](TensorId id, Sharding sharding) {
    b.graph().tensors[id.index()].sharding = std::move(sharding);
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    place(inputs[i], from_factors(splits, b.shape(inputs[i]), rule.operands[i], rule, mesh));
  for (size_t k = 0; k < results.size(); ++k) {
    Sharding sharding = from_factors(splits, b.shape(results[k]), rule.results[k], rule, mesh);
    for (const Split& split : splits) {
      const Factor::Kind kind = rule.factors[split.at].kind;
      if (has_factor(rule.results[k], split.at)) continue;
      EXPECT_NE(kind, Factor::Kind::kParallel) << to_text(rule);
      for (Axis axis : split.piece.axes)
        sharding.set_partial(axis, kind == Factor::Kind::kSum   ? ReduceOp::kSum
                                   : kind == Factor::Kind::kMax ? ReduceOp::kMax
                                                                : ReduceOp::kMin);
    }
    place(results[k], sharding);
    const TensorId whole = b.add("reshard", {results[k]});
    place(whole, Sharding::whole(b.shape(whole).size()));
    b.graph().outputs.emplace_back();
    b.graph().outputs.back().tensor = whole;
  }
  return b.take();
}

// Every factor of every sharding rule, split over 2, 3 and 4 ranks: its major part, and where it has one a minor part,
// whether it divides or not. An op without a rule is split nowhere.
TEST(Partition, EveryRuleEqualsTheWholeOp) {
  int split_calls = 0;
  for (const OpFamily& family : op_families())
    for (const OpDef& op : family.ops) {
      if (op.sharding == nullptr) continue;
      for (test::Example example : test::examples_of(op)) {
        example.attrs = complete_attrs(op, example.attrs);
        const ShardingRule rule =
            op.sharding({example.inputs, example.attrs}, infer_types(op, {example.inputs, example.attrs}));
        ASSERT_EQ(rule.operands.size(), example.inputs.size()) << op.name;
        ASSERT_EQ(rule.results.size(), op.outputs) << op.name;
        const std::vector<Array> operands = test::operands_of(example, 5);
        const std::vector<Array> whole = evaluate(op, operands, example.attrs);
        for (size_t f = 0; f < rule.factors.size(); ++f)
          for (int64_t ranks : {2, 3, 4})
            for (int64_t inner : {1, 2}) {
              const int64_t size = rule.factors[f].size;
              if (rule.factors[f].kind == Factor::Kind::kWhole || size < 2 || size % inner != 0 || size / inner < 2)
                continue;
              if (rule.indexed && rule.indexed->factor == static_cast<int>(f) && inner != 1) continue;
              const Mesh mesh = make_mesh({{"tp", ranks}});
              // Canonical: 6 over 2 are 2 ranges of 3.
              const int64_t extent = size / inner;
              const bool divides = extent % ranks == 0;
              const Split split = {f, {divides ? ranks : extent, {0}}, divides ? inner * extent / ranks : inner};
              if (rule.indexed && rule.indexed->factor == static_cast<int>(f) &&
                  split.inner * split.piece.extent != size)
                continue;
              SCOPED_TRACE(str("{} factor {} over {} ranks, {} behind: {}", op.name, f, ranks, inner, to_text(rule)));
              const Graph call = one_call(op, example, {split}, mesh);
              const Graph local = partition(call);
              verify_ops(local);
              const std::vector<Array> got = test::run_on_ranks(call, local, operands);
              for (size_t r = 0; r < whole.size(); ++r) {
                const bool sums_in_f32 = op.kernel == OwnKernel::kScaledMatmul;
                EXPECT_LE(largest_error(got[r], whole[r]), sums_in_f32 ? 1e-6 : 1e-12) << "result " << r;
                EXPECT_TRUE(!op.has(Trait::kRandom) || same_bits(got[r], whole[r])) << "a shard draws its own part";
              }
              ++split_calls;
            }
      }
    }
  EXPECT_GT(split_calls, 600);
}

// ---- random steps

class RandomStep {
 public:
  explicit RandomStep(uint64_t seed) : random_(seed), holds_gradients_(seed % 3 == 0) {
    for (int64_t& size : sizes_) size = static_cast<int64_t>(2 + below(6));
    if (below(4) == 0) sizes_[0] = 1;
  }

  Graph make() {
    b_.set_source({Phase::kForward, ""});
    rng_ = b_.graph().add_input({InputKind::kRng, "", {}, {}, 0}, {DType::kI64, {2}});
    const int64_t rows = size(), width = size();
    index_ = b_.graph().add_input({InputKind::kBatch, "index", {}, {}, 0}, {DType::kI64, {rows, width}});
    values_ = {b_.graph().add_input({InputKind::kBatch, "x", {}, {}, 0}, {DType::kF64, {rows, width}})};
    for (size_t i = 0, n = 2 + below(3); i < n; ++i) {
      Shape shape;
      for (size_t d = 0, rank = 1 + below(3); d < rank; ++d) shape.push_back(size());
      add_parameter(shape);
    }
    for (size_t step = 0; step < 24; ++step) {
      if (step == 14) b_.set_source({Phase::kBackward, ""});
      add(any());
    }
    b_.set_source({Phase::kUpdate, ""});
    for (size_t p = 0; p < parameters_.size(); ++p) update(p);
    for (int i = 0; i < 3; ++i) leave(GraphOutput::Kind::kReturn, any());
    leave(GraphOutput::Kind::kNumber, total(any()));
    return b_.take();
  }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  // Of few sizes, so that shapes meet again.
  int64_t size() { return sizes_[below(std::size(sizes_))]; }
  TensorId any() { return values_[values_.size() - 1 - below(std::min<size_t>(values_.size(), 8))]; }
  TensorId total(TensorId x) { return b_.sum(x, all_dims(x)); }
  Shape all_dims(TensorId x) {
    Shape dims;
    for (size_t d = 0; d < b_.shape(x).size(); ++d) dims.push_back(static_cast<int64_t>(d));
    return dims;
  }
  TensorId tame(TensorId x) { return b_.add("tanh", {x}); }
  // A tensor of that shape: one that has it, the rows of one that has more, another parameter, or x somehow.
  TensorId like(TensorId x, const Shape& shape) {
    for (size_t i = values_.size(), tries = 12; i-- > 0 && tries-- > 0;)
      if (b_.shape(values_[i]) == shape && below(3) != 0) return values_[i];
    for (size_t i = values_.size(), tries = 12; i-- > 0 && tries-- > 0;) {
      const Shape more = b_.shape(values_[i]);
      if (more.size() == shape.size() + 1 && std::equal(shape.begin(), shape.end(), more.begin() + 1))
        return tame(b_.sum(values_[i], {0}));
    }
    return below(4) == 0 ? as(x, shape) : add_parameter(shape);
  }
  TensorId add_parameter(const Shape& shape) {
    const std::string key = str("{}", parameters_.size());
    parameters_.push_back(b_.graph().add_input({InputKind::kParameter, key, {}, {}, 0}, {DType::kF64, shape}));
    states_.emplace_back();
    if (below(2) == 0)
      states_.back() = b_.graph().add_input({InputKind::kOptimizerState, key, {}, {}, 0}, {DType::kF64, shape});
    values_.push_back(parameters_.back());
    return parameters_.back();
  }
  TensorId as(TensorId x, const Shape& shape) {
    if (b_.shape(x) == shape) return x;
    const int64_t count = element_count(shape);
    TensorId flat = b_.reshape(x, {element_count(b_.shape(x))});
    const int64_t have = b_.shape(flat)[0];
    if (have < count) flat = b_.add("pad", {flat}, {{"low", Shape{0}}, {"high", Shape{count - have}}});
    if (have > count) flat = b_.slice(flat, {0}, {count}, {1});
    return b_.reshape(flat, shape);
  }
  void leave(GraphOutput::Kind kind, TensorId x, uint32_t input = 0) {
    GraphOutput output;
    output.kind = kind;
    output.tensor = x;
    output.input = input;
    b_.graph().outputs.push_back(output);
  }
  uint32_t place_of(TensorId input) { return b_.graph().tensors[input.index()].place; }
  void update(size_t p) {
    const TensorId parameter = parameters_[p];
    TensorId gradient = like(any(), b_.shape(parameter));
    if (holds_gradients_) {
      const std::string key = str("{}", p);
      const TensorId held = b_.graph().add_input({InputKind::kGradient, key, {}, {}, 0}, b_.type(parameter));
      gradient = b_.add("add", {held, gradient});
      leave(GraphOutput::Kind::kUpdate, p % 2 == 0 ? gradient : b_.full(0, DType::kF64, b_.shape(parameter)),
            place_of(held));
    }
    const TensorId norm =
        b_.add("sqrt", {b_.add("add", {total(b_.add("square", {gradient})), b_.full(1, DType::kF64)})});
    TensorId step = b_.add("div", {gradient, norm});
    if (states_[p].valid()) {
      step = b_.add("add", {b_.add("mul", {states_[p], b_.full(0.9, DType::kF64)}), step});
      leave(GraphOutput::Kind::kUpdate, step, place_of(states_[p]));
    }
    leave(GraphOutput::Kind::kUpdate, b_.add("sub", {parameter, step}), place_of(parameter));
  }

  void add(TensorId x) {
    const Shape shape = b_.shape(x);
    const auto rank = shape.size();
    const size_t d = rank == 0 ? 0 : below(rank);
    const Shape dim = {static_cast<int64_t>(d)};
    const Attrs along = {{"dim", static_cast<int64_t>(d)}};
    TensorId made = x;
    switch (below(17)) {
      case 0:
        made = b_.add(std::array{"neg", "tanh", "square", "abs", "silu"}[below(5)], {x});
        break;
      case 1:
      case 2:
        made = tame(b_.add(std::array{"add", "mul", "sub", "maximum"}[below(4)], {x, like(any(), shape)}));
        break;
      case 3: {
        const TensorId y = any();
        const int64_t n = size();
        if (rank == 0) break;
        const TensorId flat = b_.reshape(x, {element_count(shape) / shape.back(), shape.back()});
        made = below(2) == 0 ? b_.add("matmul", {flat, like(y, {shape.back(), n})})
                             : b_.add("matmul", {flat, like(y, {n, shape.back()})}, {{"transpose_b", true}});
        made = tame(made);
        break;
      }
      case 4: {  // two factors of the size apart, or two dimensions as one
        if (rank == 0) break;
        Shape other = shape;
        if (rank > 1 && below(2) == 0) {
          other.erase(other.begin());
          other[0] *= shape[0];
        } else {
          for (int64_t factor : {2, 3, 5})
            if (shape[d] % factor == 0 && rank < 4) {
              other[d] /= factor;
              other.insert(other.begin() + static_cast<ptrdiff_t>(d), factor);
              break;
            }
        }
        made = b_.reshape(x, other);
        break;
      }
      case 5: {
        Shape permutation(rank);
        std::iota(permutation.begin(), permutation.end(), 0);
        std::ranges::shuffle(permutation, random_);
        made = b_.transpose(x, permutation);
        break;
      }
      case 6:
        if (rank > 0) made = b_.sum(x, dim, below(2) == 0);
        made = tame(made);
        break;
      case 7:
        if (rank > 0) made = b_.add("max", {x}, {{"dims", dim}, {"keepdim", true}});
        break;
      case 8: {
        if (rank == 0) break;
        Shape starts(rank, 0), sizes = shape, steps(rank, 1);
        sizes[d] = static_cast<int64_t>(1 + below(static_cast<size_t>(shape[d])));
        starts[d] = static_cast<int64_t>(below(static_cast<size_t>(shape[d] - sizes[d] + 1)));
        made = b_.slice(x, starts, sizes, steps);
        break;
      }
      case 9:
        if (rank > 0 && shape[d] < 20) made = b_.add("concat", {x, like(any(), shape), x}, along);
        break;
      case 10: {  // rows that the batch's indices choose
        if (rank != 2) break;
        const TensorId indices = b_.add("remainder", {index_, b_.full(static_cast<double>(shape[0]), DType::kI64)});
        made = b_.add("take", {x, indices}, {{"dim", int64_t{0}}});
        break;
      }
      case 11: {
        if (rank != 2) break;
        const int64_t n = size();
        const TensorId flat = b_.reshape(index_, {element_count(b_.shape(index_))});
        const TensorId indices = b_.add("remainder", {flat, b_.full(static_cast<double>(n), DType::kI64)});
        const TensorId into = below(2) == 0 ? b_.full(0, DType::kF64, {n, shape[1]}) : as(any(), {n, shape[1]});
        made = tame(b_.add("put_add", {into, indices, as(x, {b_.shape(indices)[0], shape[1]})}, {{"dim", int64_t{0}}}));
        break;
      }
      case 12: {
        if (rank == 0) break;
        Shape expanded = shape;
        expanded.insert(expanded.begin(), size());
        if (element_count(expanded) < 400) made = b_.expand(x, expanded);
        break;
      }
      case 13: {
        if (rank == 0) break;
        const TensorId places = b_.add(
            "iota", {}, {{"shape", shape}, {"dtype", DType::kF64}, {"dim", static_cast<int64_t>(d)}, {"start", 0.5}});
        const TensorId seen = b_.add("lt", {places, b_.full(2, DType::kF64)});
        made = b_.add("where", {seen, x, b_.full(0.25, DType::kF64)});
        break;
      }
      case 14:
        made = b_.add("add", {x, b_.add("random_uniform", {rng_},
                                        {{"shape", shape}, {"dtype", DType::kF64}, {"stream", stream_++}})});
        break;
      case 15:
        if (rank > 0) made = tame(b_.add("cumsum", {x}, along));
        break;
      case 16: {
        if (rank != 2 || element_count(shape) % 4 != 0) break;
        const int64_t length = shape[1];
        const TensorId q = as(x, {2, 4, length, 2});
        const TensorId k = as(any(), {2, 2, 5, 2}), v = as(any(), {2, 2, 5, 2});
        made = b_.add_all("attention", {q, k, v}, {{"scale", 0.5}, {"causal", below(2) == 0}})[0];
        break;
      }
    }
    if (element_count(b_.shape(made)) > 0 && element_count(b_.shape(made)) < 800) values_.push_back(made);
  }

  std::mt19937_64 random_;
  bool holds_gradients_;
  int64_t sizes_[3] = {};
  GraphBuilder b_;
  TensorId rng_, index_;
  std::vector<TensorId> values_, parameters_, states_;
  int64_t stream_ = 0;
};

Mesh random_mesh(std::mt19937_64& random) {
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  for (std::string_view name : mesh_axis_names()) {
    if (name == "pp" || name == kMicroBatchAxis) continue;  // a stage's step is what is partitioned; turns of one rank
    const auto size = static_cast<int64_t>(1 + random() % 3);
    if (random() % 2 == 0 || ranks * size > 16) continue;
    axes.push_back({std::string(name), size});
    ranks *= size;
  }
  if (ranks == 1) axes = {{"tp", 2}};
  return make_mesh(axes);
}

// How much of what can be split is split: nodes with a factor that some axis could split, and those where one does.
struct Share {
  int could = 0, are = 0;
  void count(const Graph& sharded) {
    for (const Node& node : sharded.nodes) {
      if (node.aten || collective_of(node) != Collective::kNone || node.inputs.empty()) continue;
      const ShardingRule rule = sharding_rule_of(sharded, node);
      const bool can = std::ranges::any_of(
          rule.factors, [](const Factor& factor) { return factor.kind != Factor::Kind::kWhole && factor.size >= 2; });
      if (!can) continue;
      ++could;
      const auto is_split = [&](TensorId id) { return !sharded.tensors[id.index()].sharding->is_whole(); };
      are += std::ranges::any_of(node.inputs, is_split) || std::ranges::any_of(node.outputs, is_split) ? 1 : 0;
    }
  }
};

void run_random_steps(uint64_t first, uint64_t count, Share& share) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(str("seed {}", seed));
    std::mt19937_64 random(seed);
    const Graph graph = dead_code(RandomStep(seed).make());
    verify_ops(graph);
    const std::vector<Array> inputs = test::random_inputs(graph, seed, 7);
    const Mesh mesh = random_mesh(random);
    Strategy strategy = {mesh, static_cast<int>(random() % 4), random() % 2 == 0};
    test::Partitioned made;
    const bool any_seeds = random() % 2 == 0;  // not those of a preset
    if (any_seeds) {
      std::vector<Sharding> seeds;
      std::vector<bool> used(mesh.axes.size(), false);
      for (const GraphInput& input : graph.inputs) {
        const Shape& shape = graph.shape(input.tensor);
        seeds.push_back(Sharding::whole(shape.size()));
        for (Axis axis = 0; axis < mesh.axes.size() && input.kind != InputKind::kRng; ++axis) {
          if (random() % 2 == 0 && (used[axis] || input.kind != InputKind::kBatch)) continue;
          const size_t d = random() % shape.size();
          if (!seeds.back().dims[d].empty()) continue;
          const int64_t ranks = mesh.size(axis);
          const Pieces turning = {{2, {}}, {ranks, {axis}, true}, {shape[d] / (2 * ranks), {}}};
          const bool zigzags = seed % 3 == 0 && shape[d] % (2 * ranks) == 0;
          seeds.back().dims[d] = canonical(zigzags ? turning : Pieces{{shape[d], {axis}}}, mesh);
          used[axis] = true;
        }
      }
      made.sharded = propagate_shardings(graph, mesh, seeds);
      verify_ops(made.sharded.graph);
      made.local = partition(made.sharded.graph);
      verify_ops(made.local);
    } else {
      made = test::partitioned(graph, strategy);
    }
    ASSERT_EQ(parse_graph(to_text(made.sharded.graph)), made.sharded.graph);
    ASSERT_EQ(parse_graph(to_text(made.local)), made.local);
    if (any_seeds) share.count(made.sharded.graph);
    test::largest_error_on_ranks(graph, made.local, inputs);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << to_text(mesh) << " zero " << strategy.zero << "\n" << to_text(made.sharded.graph);
      return;
    }
  }
}

TEST(Partition, RandomStepsOnRandomMeshes) {
  Share share;
  run_random_steps(0, 500, share);
  std::printf("split: %d of %d nodes that could be\n", share.are, share.could);
  EXPECT_GT(share.are, share.could * 6 / 10);
}

// Of all exchanges.
int64_t sent_elements(const Graph& local) {
  int64_t elements = 0;
  for (const Node& node : local.nodes)
    if (exchanges(collective_of(node)))
      for (TensorId input : node.inputs) elements += element_count(local.shape(input));
  return elements;
}

// What comes behind the partitioner takes a rank's step: nothing fuses, repeats or reorders what ranks do together, and
// all mean the same.
TEST(Partition, TheWholePassTableKeepsTheMeaningOfRandomSteps) {
  size_t buckets = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(str("seed {}", seed));
    std::mt19937_64 random(seed);
    const Graph graph = dead_code(RandomStep(seed).make());
    RunOptions options;
    options.verify = true;
    options.settings.strategy = {random_mesh(random), static_cast<int>(random() % 4), random() % 2 == 0};
    if (seed % 2 == 0) options.settings.recompute.emplace().budget_bytes = 1;
    const Graph local = run_passes(graph, options).graph;
    for (const Node& node : local.nodes) {
      EXPECT_FALSE(collective_of(node) != Collective::kNone && node.group) << node.op << " is in a kernel";
      buckets += static_cast<size_t>(collective_of(node) != Collective::kNone && node.inputs.size() > 1);
    }
    ASSERT_EQ(local.mesh, options.settings.strategy.mesh);
    if (seed % 10 == 0) {  // what is recomputed sends nothing once more
      RunOptions plain = options;
      plain.settings.recompute.reset();
      EXPECT_EQ(sent_elements(local), sent_elements(run_passes(graph, plain).graph));
    }
    const std::vector<Array> all = test::random_inputs(graph, seed, 7);
    const std::vector<Array> wanted = interpret(graph, all);
    const std::vector<Array> got = test::run_on_ranks(graph, local, all);
    ASSERT_LE(wanted.size(), got.size());  // guards come behind
    for (size_t o = 0; o < wanted.size(); ++o)
      EXPECT_TRUE(wanted[o].count() == 0 || largest_error(got[o], wanted[o]) <= 1e-10) << "output " << o;
    options.settings.strategy.bucket_bytes = 0;
    if (seed % 4 == 0) {
      const std::vector<Array> alone = test::run_on_ranks(graph, run_passes(graph, options).graph, all);
      for (size_t o = 0; o < got.size(); ++o)
        EXPECT_TRUE(got[o].count() == 0 || largest_error(got[o], alone[o]) == 0) << "output " << o;
    }
    if (HasFailure()) {
      ADD_FAILURE() << to_text(local);
      return;
    }
  }
  EXPECT_GT(buckets, 100U);
}

// --gtest_also_run_disabled_tests
TEST(Partition, DISABLED_FiveThousandRandomSteps) {
  Share share;
  run_random_steps(500, 5000, share);
}

// ---- steps at the edge

// A batch of nothing, or of one element: what a rank has none of it pads.
Graph small_step(int64_t rows, int64_t width) {
  return parse_graph(str(R"(stepc.graph 1
input %0: f64[{0}, {1}] = batch "x"
input %1: f64[{1}, {1}] = parameter "up"
input %2: f64[{1}, {1}] = parameter "down"
%3: f64[{0}, {1}] = matmul(%0, %1) {{transpose_a=false, transpose_b=false}} | forward "up"
%4: f64[{0}, {1}] = matmul(%3, %2) {{transpose_a=false, transpose_b=false}} | forward "down"
%5: f64[] = sum(%4) {{dims=[0, 1], keepdim=false}} | forward ""
%6: f64[{1}, {1}] = matmul(%3, %4) {{transpose_a=true, transpose_b=false}} | backward "down"
%7: f64[{1}, {1}] = sub(%2, %6) | update ""
return %5
update %2 = %7
)",
                         rows, width));
}
// A parameter used in three ways beside a frozen one and one that nothing uses.
Graph tied_three_ways() {
  return parse_graph(R"(stepc.graph 1
input %0: f64[7, 6] = batch "x"
input %1: f64[6, 6] = parameter "w"
input %2: f64[6, 6] = parameter "frozen"
input %3: f64[5] = parameter "unused"
input %4: i64[7] = batch "ids"
input %5: f64[6, 6] = optimizer_state "w.m"
%6: f64[7, 6] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward "a"
%7: f64[7, 6] = matmul(%6, %1) {transpose_a=false, transpose_b=true} | forward "b"
%8: i64[] = full() {dtype=i64, shape=[], value=6} | forward ""
%9: i64[7] = remainder(%4, %8) | forward ""
%10: f64[7, 6] = take(%1, %9) {dim=0} | forward "c"
%11: f64[7, 6] = add(%7, %10) | forward ""
%12: f64[7, 6] = matmul(%11, %2) {transpose_a=false, transpose_b=false} | forward "d"
%13: f64[6, 6] = matmul(%6, %12) {transpose_a=true, transpose_b=false} | backward "a"
%14: f64[6, 6] = matmul(%0, %12) {transpose_a=true, transpose_b=false} | backward "b"
%15: f64[6, 6] = full() {dtype=f64, shape=[6, 6], value=0.0} | backward "c"
%16: f64[6, 6] = put_add(%15, %9, %12) {dim=0} | backward "c"
%17: f64[6, 6] = add(%13, %14) | backward ""
%18: f64[6, 6] = add(%17, %16) | backward ""
%19: f64[6, 6] = add(%5, %18) | update ""
%20: f64[6, 6] = sub(%1, %19) | update ""
return %12
update %1 = %20
update %5 = %19
)");
}

TEST(Partition, EdgesMeanTheSameOnAnyMesh) {
  for (const Graph& graph : {small_step(0, 4), small_step(1, 1), small_step(3, 1), tied_three_ways()})
    for (const char* mesh :
         {"dp_shard=2", "dp_shard=3,tp=5", "tp=3", "cp=2", "dp_replicate=2,dp_shard=2,cp=2,tp=2", "dp_shard=16"})
      for (int zero : {0, 1, 3}) {
        SCOPED_TRACE(str("{} zero {}\n{}", mesh, zero, to_text(graph)));
        const Strategy strategy = {parse_mesh(mesh), zero};
        const Graph local = test::partitioned(graph, strategy).local;
        test::largest_error_on_ranks(graph, local, test::random_inputs(graph, 1, 7));
      }
}

// ---- what a person asks for

Graph two_layers() {
  return parse_graph(R"(stepc.graph 1
input %0: f32[8, 4] = batch "0"
input %1: f32[4, 6] = parameter "model.up.weight"
input %2: f32[6, 4] = parameter "model.down.weight"
%3: f32[8, 6] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward "model.up"
%4: f32[8, 4] = matmul(%3, %2) {transpose_a=false, transpose_b=false} | forward "model.down"
return %4
)");
}

// A layer in float8 with its gradients: the largest element of all ranks' parts says the scale.
TEST(Partition, ScalesOfFloat8AreThoseOfTheWholeTensors) {
  const Graph layer = parse_graph(
      "stepc.graph 1\n"
      "input %0: f32[32, 64] = batch \"x\"\n"
      "input %1: f32[48, 64] = parameter \"mlp.weight\"\n"
      "input %2: f32[32, 48] = batch \"gradient\"\n"
      "%3: f32[32, 48] = matmul(%0, %1) {transpose_a=false, transpose_b=true} | forward \"mlp\"\n"
      "%4: f32[48, 64] = matmul(%2, %0) {transpose_a=true, transpose_b=false} | backward \"mlp\"\n"
      "%5: f32[32, 64] = matmul(%2, %1) {transpose_a=false, transpose_b=false} | backward \"mlp\"\n"
      "return %3\n"
      "return %4\n"
      "return %5\n");
  const std::vector<Array> inputs = test::random_inputs(layer, 3, 4);
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise}) {
    const Graph scaled = fp8(layer, recipe);
    for (const Graph& graph : {scaled, decompose(scaled)})  // as a GPU runs it and as a CPU does
      for (const char* mesh : {"dp_shard=2", "tp=2", "dp_shard=2,tp=4", "dp_replicate=3"}) {
        SCOPED_TRACE(str("{} on {}", name_of(recipe), mesh));
        Strategy strategy;
        strategy.mesh = parse_mesh(mesh);
        const Graph local = test::partitioned(graph, strategy).local;
        const auto weight = std::ranges::find(local.inputs, InputKind::kParameter, &GraphInput::kind);
        if (graph == scaled && strategy.mesh.find("tp")) {
          EXPECT_LE(element_count(local.shape(weight->tensor)), 48 * 64 / 2) << "found behind its scale";
        }
        const std::vector<Array> want = interpret(graph, inputs);
        const std::vector<Array> have = test::run_on_ranks(graph, local, inputs);
        for (size_t o = 0; o < want.size(); ++o) EXPECT_LE(largest_error(have[o], want[o]), 1e-6) << "output " << o;
      }
  }
}

TEST(Partition, ARuleSplitsWhatItMatches) {
  Strategy strategy = {parse_mesh("tp=2"), 0};
  strategy.rules = {{"*.up.weight", {{0, "tp"}}}};
  const Graph sharded = propagate_shardings(two_layers(), strategy).graph;
  const TensorId up = sharded.inputs[1].tensor;
  EXPECT_EQ(to_text(*sharded.tensors[up.index()].sharding, sharded.shape(up), sharded.mesh), "<4/tp, 6>");
}

// Of rules that match one parameter the last counts; what they say holds whatever tensor parallelism would find.
TEST(Partition, RulesThatMeetMeanTheSame) {
  const Graph graph = tied_three_ways();
  const std::vector<std::vector<ShardRule>> all = {{{"w", {{0, "tp"}}}},
                                                   {{"*", {{0, "tp"}}}, {"w", {{1, "tp"}}}},
                                                   {{"w", {{0, "dp_shard"}, {1, "tp"}}}},
                                                   {{"frozen", {{0, "tp"}, {1, "dp_shard"}}}, {"w", {{1, "tp"}}}}};
  const std::vector<std::string> lies = {"<6/tp, 6>", "<6, 6/tp>", "<6/dp_shard, 6/tp>", "<6, 6/tp>"};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Strategy strategy = {parse_mesh("dp_shard=2,tp=2"), 0};
    strategy.rules = all[i];
    const test::Partitioned made = test::partitioned(graph, strategy);
    const GraphInput& w = made.sharded.graph.inputs[1];
    ASSERT_EQ(w.key, "w");
    const Graph& sharded = made.sharded.graph;
    const Graph written =
        parse_graph(str("stepc.graph 1\nmesh dp_shard=2,tp=2\ninput %0: f64[6, 6] {} = parameter \"w\"\n"
                        "return %0\n",
                        lies[i]));
    EXPECT_EQ(sharded.tensors[w.tensor.index()].sharding, written.tensors[0].sharding);
    test::largest_error_on_ranks(graph, made.local, test::random_inputs(graph, 1, 7));
  }
}

TEST(Partition, BadStrategiesAreRefused) {
  const auto expect = [](const Strategy& strategy, const std::string& message) {
    EXPECT_USER_ERROR(propagate_shardings(two_layers(), strategy), message);
  };
  const Mesh mesh = parse_mesh("tp=2");
  expect({mesh, 4}, "zero is 4; it is 0 (nothing is split but the batch), 1, 2 or 3");
  expect({mesh, 0, true, {{"*.upp.weight", {{0, "tp"}}}}}, "the rule '*.upp.weight' matches no parameter");
  expect({mesh, 0, true, {{"*.up.weight", {{2, "tp"}}}}}, "dimension 2 of 'model.up.weight', which has 2");
  expect({mesh, 0, true, {{"*.up.weight", {{0, "tp"}, {1, "tp"}}}}},
         "the rule '*.up.weight' splits dimensions 0 and 1 along 'tp'; an axis splits one of them");
  expect({mesh, 0, true, {{"*.up.weight", {{0, "cp"}}}}},
         "splits dimension 0 along 'cp', and the mesh tp=2 has no more than one rank there");
  expect({parse_mesh("tp=8"), 0, true, {{"*.up.weight", {{0, "tp"}}}}},
         "splits dimension 0 of 'model.up.weight' over 8 ranks along 'tp', and it has 4 elements");
}

// ---- gradients that several micro-batches add up

Graph micro_batch() {
  return parse_graph(R"(stepc.graph 1
input %0: f64[8, 4] = batch "0"
input %1: f64[4, 6] = parameter "up"
input %2: f64[4, 6] = gradient "up"
input %3: f64[6, 2] = parameter "down"
input %4: f64[6, 2] = gradient "down"
%5: f64[8, 6] = matmul(%0, %1) {transpose_a=false, transpose_b=false} | forward ""
%6: f64[8, 2] = matmul(%5, %3) {transpose_a=false, transpose_b=false} | forward ""
%7: f64[6, 2] = matmul(%5, %6) {transpose_a=true, transpose_b=false} | backward ""
%8: f64[8, 6] = matmul(%6, %3) {transpose_a=false, transpose_b=true} | backward ""
%9: f64[4, 6] = matmul(%0, %8) {transpose_a=true, transpose_b=false} | backward ""
%10: f64[4, 6] = add(%2, %9) | backward ""
%11: f64[6, 2] = add(%4, %7) | backward ""
update %2 = %10
update %4 = %11
)");
}
Graph update_of_held() {
  return parse_graph(R"(stepc.graph 1
input %0: f64[4, 6] = parameter "up"
input %1: f64[4, 6] = gradient "up"
input %2: f64[4, 6] = optimizer_state "up"
input %3: f64[6, 2] = parameter "down"
input %4: f64[6, 2] = gradient "down"
%5: f64[4, 6] = square(%1) | update ""
%6: f64[4, 6] = add(%2, %5) | update ""
%7: f64[4, 6] = mul(%1, %6) | update ""
%8: f64[4, 6] = sub(%0, %7) | update ""
%9: f64[6, 2] = square(%4) | update ""
%10: f64[6, 2] = sub(%3, %9) | update ""
%11: f64[4, 6] = full() {dtype=f64, shape=[4, 6], value=0.0} | update ""
%12: f64[6, 2] = full() {dtype=f64, shape=[6, 2], value=0.0} | update ""
update %0 = %8
update %2 = %6
update %1 = %11
update %3 = %10
update %4 = %12
)");
}
// What a rank sends, "all_reduce dp_replicate 2", where every output is that of one device.
std::vector<std::string> sent_by(const Graph& graph, const Strategy& strategy) {
  const Graph local = test::partitioned(graph, strategy).local;
  test::largest_error_on_ranks(graph, local, test::random_inputs(graph, 1, 7));
  std::vector<std::string> sent;
  for (const Communication& one : communication_of(local))
    sent.push_back(str("{} {} {}", one.op, to_text(one.axes, strategy.mesh), one.count));
  return sent;
}
std::string held_as(const Graph& graph, const Strategy& strategy) {
  const Graph sharded = propagate_shardings(graph, strategy).graph;
  for (const GraphInput& input : sharded.inputs)
    if (input.kind == InputKind::kGradient)
      return to_text(*sharded.tensors[input.tensor.index()].sharding, sharded.shape(input.tensor), sharded.mesh);
  return "";
}

TEST(Partition, HeldGradientsAreReducedOnceAStepOrWithEachMicroBatch) {
  using Sent = std::vector<std::string>;
  struct Expected {
    Strategy strategy;
    std::string held;
    Sent micro_batch, update;
  };
  const std::string gathered = "all_gather dp_shard 2", scattered = "reduce_scatter dp_shard 2";
  const std::vector<Expected> all = {
      {{parse_mesh("dp_replicate=2"), 0}, "<4, 6> sum(dp_replicate)", {}, {"all_reduce dp_replicate 2"}},
      // There is no state of "down" to split.
      {{parse_mesh("dp_shard=2"), 1},
       "<4, 6> sum(dp_shard)",
       {},
       {"all_gather dp_shard 1", "all_reduce dp_shard 1", "reduce_scatter dp_shard 1"}},
      {{parse_mesh("dp_shard=2"), 2}, "<4/dp_shard, 6>", {scattered}, {gathered}},
      {{parse_mesh("dp_shard=2"), 3}, "<4/dp_shard, 6>", {"all_gather dp_shard 3", scattered}, {}},
      {{parse_mesh("dp_replicate=2,dp_shard=2"), 3},
       "<4/dp_shard, 6> sum(dp_replicate)",
       {"all_gather dp_shard 3", scattered},
       {"all_reduce dp_replicate 2"}}};
  for (const auto& [strategy, held, micro_sent, update_sent] : all) {
    SCOPED_TRACE(str("{} zero {}", to_text(strategy.mesh), strategy.zero));
    EXPECT_EQ(held_as(micro_batch(), strategy), held);
    EXPECT_EQ(held_as(update_of_held(), strategy), held);
    EXPECT_EQ(sent_by(micro_batch(), strategy), micro_sent);
    EXPECT_EQ(sent_by(update_of_held(), strategy), update_sent);
  }
}

// Nothing in an update says where tensor parallelism splits; its micro-batches do.
TEST(Partition, AnUpdateFindsParametersAsMicroBatchesSplitThem) {
  Strategy strategy = {parse_mesh("tp=2"), 0};
  const Graph micro = propagate_shardings(micro_batch(), strategy).graph;
  for (const GraphInput& input : micro.inputs)
    if (input.kind == InputKind::kParameter) strategy.known[input.key] = *micro.tensors[input.tensor.index()].sharding;
  EXPECT_EQ(held_as(update_of_held(), {parse_mesh("tp=2"), 0}), "<4, 6>");
  EXPECT_EQ(held_as(update_of_held(), strategy), held_as(micro_batch(), strategy));
  EXPECT_EQ(held_as(update_of_held(), strategy), "<4, 6/tp>");
  EXPECT_EQ(sent_by(update_of_held(), strategy), std::vector<std::string>{});
}

// Two parameters of one shape whose gradients become the same zeros.
TEST(Partition, WhatManyGradientsBecomeSaysNothingOfHowTheyLie) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f64[4, 4] = parameter "up"
input %1: f64[4, 4] = gradient "up"
input %2: f64[4, 4] = parameter "down"
input %3: f64[4, 4] = gradient "down"
%4: f64[4, 4] = sub(%0, %1) | update ""
%5: f64[4, 4] = sub(%2, %3) | update ""
%6: f64[4, 4] = full() {dtype=f64, shape=[4, 4], value=0.0} | update ""
update %0 = %4
update %1 = %6
update %2 = %5
update %3 = %6
)");
  Strategy strategy = {parse_mesh("tp=2"), 0};
  const Pieces split = {{4, {*strategy.mesh.find("tp")}}};
  strategy.known["up"] = Sharding{{split, {}}, {}};
  strategy.known["down"] = Sharding{{{}, split}, {}};
  const Graph sharded = propagate_shardings(graph, strategy).graph;
  for (const GraphInput& input : sharded.inputs)
    EXPECT_EQ(*sharded.tensors[input.tensor.index()].sharding, strategy.known.at(input.key)) << input.key;
}

// Labels that name no class among them: 0 to 6 of 4.
TEST(Partition, AGradientsSumOverClassesIsTheLabels) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: i64[12, 1] = batch "labels"
input %1: f64[12, 1] = batch "x"
%2: i64[12, 4] = iota() {dim=1, dtype=i64, shape=[12, 4], start=0, step=1} | backward ""
%3: bool[12, 4] = eq(%0, %2) | backward ""
%4: f64[] = full() {dtype=f64, shape=[], value=0.0} | backward ""
%5: f64[12, 4] = where(%3, %1, %4) | backward ""
%6: f64[12] = sum(%5) {dims=[1], keepdim=false} | backward ""
%7: f64[4] = sum(%5) {dims=[0], keepdim=false} | backward ""
return %6
return %7
)");
  const Graph local = test::partitioned(graph, {parse_mesh("tp=2"), 0}).local;
  test::largest_error_on_ranks(graph, local, test::random_inputs(graph, 3, 7));
  const auto sums = std::ranges::count(local.nodes, "sum", &Node::op);
  EXPECT_EQ(sums, 1) << to_text(local);
}

// What no rule says how to split cannot be on the way of the batch.
TEST(Partition, AnOpaqueCallOnTheBatchIsRefused) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f32[8, 4] = batch "0"
%1: f32[8, 4] = my::op(%0) -> % | forward "model.own"
return %1
)");
  EXPECT_USER_ERROR(propagate_shardings(graph, {parse_mesh("dp_shard=2"), 3}),
                    "my::op (in 'model.own') cannot be split along dp_shard");
  EXPECT_NO_THROW(propagate_shardings(graph, {parse_mesh("tp=2"), 0}));
}

// What the host reads is whole by then, and what it gives back is the same on every rank.
TEST(Partition, APauseIsGivenWhatOneDeviceGivesIt) {
  const Graph graph = parse_graph(R"(stepc.graph 1
input %0: f64[4, 6] = batch "x"
input %1: f64[6] = parameter "w"
input %2: f64[] = scalar "made of it"
%3: f64[4, 6] = mul(%0, %1) | forward ""
%4: f64[] = sum(%3) {dims=[0, 1], keepdim=false} | forward ""
= host::pause(0, t[%4], t[], []) draws | forward ""
%5: f64[] = host::pause(1, t[%3], t[%2], [2]) writes 1 draws | forward ""
%6: f64[6] = mul(%1, %5) | update ""
update %1 = %6
)");
  const Graph local = test::partitioned(graph, {parse_mesh("dp_shard=2"), 3}).local;
  std::vector<TensorType> given;
  for (const Node& node : local.nodes) {
    if (!is_host_code(node)) continue;
    const HostCode code = host_code_of(node);
    given.push_back(local.type(code.given.at(0).tensor));
    for (const HostCode::Slot& slot : code.slots) EXPECT_EQ(local.inputs[slot.input].kind, InputKind::kScalar);
  }
  const std::vector<TensorType> wanted = {{DType::kF64, {}}, {DType::kF64, {4, 6}}};
  EXPECT_EQ(given, wanted) << to_text(local);
  EXPECT_EQ(std::ranges::count(local.nodes, "all_reduce", &Node::op), 1) << "of the sum, for the first pause";
}

// ---- losses that are means of the ranks' means

// A loss over the rows that count, its gradient, clipped by its norm, and an update with a state.
Graph masked_loss() {
  return parse_graph(R"(stepc.graph 1
input %0: f64[4, 6] = batch "x"
input %1: f64[4, 2] = batch "counts"
input %2: f64[6, 2] = parameter "w"
input %3: f64[6, 2] = optimizer_state "w"
%4: f64[4, 2] = matmul(%0, %2) {transpose_a=false, transpose_b=false} | forward ""
%5: f64[4, 2] = square(%4) | forward ""
%6: f64[4, 2] = square(%1) | forward ""
%7: f64[4, 2] = mul(%5, %6) | forward ""
%8: f64[] = sum(%7) {dims=[0, 1], keepdim=false} | forward ""
%9: f64[] = sum(%6) {dims=[0, 1], keepdim=false} | forward ""
%10: f64[] = div(%8, %9) | forward ""
%11: f64[4, 2] = mul(%4, %6) | backward ""
%12: f64[4, 2] = div(%11, %9) | backward ""
%13: f64[6, 2] = matmul(%0, %12) {transpose_a=true, transpose_b=false} | backward ""
%14: f64[6, 2] = square(%13) | update ""
%15: f64[] = sum(%14) {dims=[0, 1], keepdim=false} | update ""
%16: f64[6, 2] = div(%13, %15) | update ""
%17: f64[6, 2] = add(%3, %16) | update ""
%18: f64[6, 2] = sub(%2, %17) | update ""
update %2 = %18
update %3 = %17
return %10
return %15
)");
}

// By hand of one device's graph: the mean of what it finds on each rank's rows, up to the gradient and the loss.
TEST(Partition, MeansByRankAreTheMeanOfWhatEachRankHas) {
  const Graph graph = masked_loss();
  Graph gradient = graph;
  gradient.outputs.resize(0);
  for (const uint32_t id : {13U, 10U}) {
    gradient.outputs.emplace_back();
    gradient.outputs.back().tensor = TensorId(id);
  }
  Graph update = parse_graph(R"(stepc.graph 1
input %0: f64[6, 2] = gradient "w"
input %1: f64[6, 2] = parameter "w"
input %2: f64[6, 2] = optimizer_state "w"
%3: f64[6, 2] = square(%0) | update ""
%4: f64[] = sum(%3) {dims=[0, 1], keepdim=false} | update ""
%5: f64[6, 2] = div(%0, %4) | update ""
%6: f64[6, 2] = add(%2, %5) | update ""
%7: f64[6, 2] = sub(%1, %6) | update ""
return %7
return %6
return %4
)");
  for (const char* name :
       {"dp_replicate=2", "dp_shard=2", "dp_replicate=2,dp_shard=2", "dp_shard=3", "dp_shard=2,tp=2"})
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(str("{} zero {}", name, zero));
      Strategy strategy = {parse_mesh(name), zero};
      strategy.means_by_rank = true;
      const Mesh& mesh = strategy.mesh;
      const std::vector<Array> first = test::random_inputs(graph, 1, 7);
      const auto ranks = static_cast<size_t>(mesh.ranks());
      const size_t beside = mesh.find("tp") ? 2 : 1;  // ranks with the same rows
      const size_t groups = ranks / beside;
      std::vector<std::vector<Array>> rows(groups);
      Array mean(graph.type(TensorId(13)));
      double loss = 0;
      for (size_t g = 0; g < groups; ++g) {
        rows[g] = first;
        const std::vector<Array> other = test::random_inputs(graph, 2 + g, 7);
        rows[g][0] = other[0], rows[g][1] = other[1];
        const std::vector<Array> found = interpret(gradient, rows[g]);
        for (size_t e = 0; e < mean.reals.size(); ++e) mean.reals[e] += found[0].reals[e] / static_cast<double>(groups);
        loss += found[1].reals[0] / static_cast<double>(groups);
      }
      const std::vector<Array> wanted = interpret(update, {mean, first[2], first[3]});
      const test::Partitioned made = test::partitioned(graph, strategy);
      std::vector<std::vector<Array>> inputs(ranks);
      for (size_t r = 0; r < ranks; ++r)
        for (const GraphInput& input : made.local.inputs) {
          if (input.kind == InputKind::kMesh) {
            inputs[r].emplace_back();
            continue;
          }
          const size_t k = input.key == "x"                      ? 0
                           : input.key == "counts"               ? 1
                           : input.kind == InputKind::kParameter ? 2
                                                                 : 3;
          const Array& whole = rows[r / beside][k];
          inputs[r].push_back(input.part ? local_of(whole, input.part->sharding, mesh, static_cast<int64_t>(r))
                                         : whole);
        }
      const std::vector<std::vector<Array>> got = interpret_ranks(made.local, inputs);
      for (size_t o = 0; o < 4; ++o) {
        std::vector<Array> parts;
        for (size_t r = 0; r < ranks; ++r) parts.push_back(got[r][o]);
        const auto& part = made.local.outputs[o].part;
        for (size_t r = 0; r < ranks && !part; ++r) EXPECT_EQ(parts[r].reals, parts[0].reals) << "output " << o;
        const Array whole = part ? whole_of(parts, part->sharding, part->shape, mesh) : parts[0];
        if (o == 2)
          EXPECT_NEAR(whole.reals[0], loss, 1e-12);
        else
          EXPECT_LT(largest_error(whole, wanted[o == 3 ? 2 : o]), 1e-12) << "output " << o;
      }
    }
}

TEST(Partition, WhatHasNoMeanOfRanksIsRefused) {
  Strategy strategy = {parse_mesh("dp_shard=2"), 3};
  strategy.means_by_rank = true;
  const auto expect = [&](const std::string& rest, const std::string& message) {
    const Graph graph = parse_graph(
        "stepc.graph 1\ninput %0: f64[4, 6] = batch \"x\"\ninput %1: f64[6] = buffer \"seen\"\n"
        "input %2: f64[4, 6] = parameter \"w\"\n" +
        rest);
    EXPECT_USER_ERROR(propagate_shardings(graph, strategy), message);
  };
  expect("%3: f64[4, 6] = mul(%0, %2) | forward \"\"\nreturn %3\n",
         "the step returns f64[4, 6] of each rank's own rows");
  expect("%3: f64[6] = sum(%0) {dims=[0], keepdim=false} | forward \"\"\nupdate %1 = %3\n",
         "cannot keep buffer 'seen' alike on the ranks");
  expect(
      "%3: bool[4, 6] = lt(%0, %2) | forward \"\"\n%4: bool[] = any(%3) {dims=[0, 1], keepdim=false} | update "
      "\"\"\nreturn %4\n",
      "the step returns a bool of each rank's own rows: return it as a float");
  expect("%3: f64[4, 6] = mul(%0, %2) | forward \"\"\n%4: f64[4, 6] = add(%2, %3) | update \"\"\nupdate %2 = %4\n",
         "cannot keep parameter 'w' alike on the ranks");
  expect(
      "%3: f64[4, 6] = mul(%0, %2) | backward \"\"\n%4: f64[24] = reshape(%3) {shape=[24]} | update \"\"\nreturn %4\n",
      "the step returns f64[24] of each rank's own rows");
  expect("%3: f64[4, 6] = square(%0) | backward \"\"\n%4: f64[4, 6] = mul(%3, %3) | forward \"\"\nreturn %4\n",
         "uses one where gradients are recorded: put that under torch.no_grad()");
  expect(
      "%3: bool[4, 6] = lt(%0, %2) | forward \"\"\n%4: bool[] = any(%3) {dims=[0, 1], keepdim=false} | forward "
      "\"\"\n= host::pause(0, t[%4], t[], []) draws | forward \"\"\n",
      "the step reads bool[] of each rank's own rows: compare what .item() of a mean gives");
}

TEST(Partition, MatchesKeysWithStars) {
  EXPECT_TRUE(matches("model.layers.0.q_proj.weight", "*.q_proj.weight"));
  EXPECT_TRUE(matches("a.b", "a.b"));
  EXPECT_TRUE(matches("a.b.c", "a*c"));
  EXPECT_FALSE(matches("a.b.c", "a*d"));
  EXPECT_FALSE(matches("a.b", "a"));
}

}  // namespace
}  // namespace stepc
