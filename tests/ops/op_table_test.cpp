#include <algorithm>

#include <gtest/gtest.h>

#include "base/files.h"
#include "interp/evaluate.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "tests/ops/op_examples.h"

namespace stepc {
namespace {

template <class F>
void for_each_example(F&& f) {
  for (const OpFamily& family : op_families())
    for (const OpDef& op : family.ops) {
      const auto examples = test::examples_of(op);
      EXPECT_FALSE(examples.empty()) << op.name << " has no example in tests/ops/op_examples.h";
      for (size_t i = 0; i < examples.size(); ++i) {
        SCOPED_TRACE(str("{} example {}", op.name, i));
        test::Example example = examples[i];
        example.attrs = complete_attrs(op, example.attrs);
        f(op, example);
      }
    }
}

TEST(OpTable, EveryOpEvaluatesToTheTypesOfItsShapeRule) {
  for_each_example([](const OpDef& op, const test::Example& example) {
    const std::vector<TensorType> types = infer_types(op, {example.inputs, example.attrs});
    if (op.collective != Collective::kNone) return;  // no rank can do it alone: interp/interpret_ranks
    const std::vector<Array> results = evaluate(op, test::operands_of(example, 1), example.attrs);
    ASSERT_EQ(results.size(), types.size());
    for (size_t r = 0; r < results.size(); ++r) {
      EXPECT_EQ(to_text(results[r].type), to_text(types[r]));
      EXPECT_EQ(static_cast<int64_t>(results[r].reals.size() + results[r].integers.size()),
                element_count(types[r].shape));
    }
  });
}

TEST(OpTable, EveryOpRoundTripsThroughText) {
  for_each_example([](const OpDef& op, const test::Example& example) {
    GraphBuilder b;
    std::vector<TensorId> inputs;
    for (size_t i = 0; i < example.inputs.size(); ++i)
      inputs.push_back(b.graph().add_input({InputKind::kBatch, str("{}", i), {}, {}, 0}, example.inputs[i]));
    b.add_all(op.name, inputs, example.attrs);
    const Graph graph = b.take();
    verify_ops(graph);
    EXPECT_EQ(parse_graph(to_text(graph)), graph) << to_text(graph);
  });
}

// A kernel reads the nearest element for an index out of range, so an op that forgets to declare its indices would read
// a wrong one without a word. An operand that must hold integers, in an op that has not one element's worth of them at
// each place (elementwise) and draws no random numbers by them, holds indices.
TEST(OpTable, WhatIsIndexedIsDeclared) {
  const auto takes = [](const OpDef& op, const test::Example& example, const std::vector<TensorType>& inputs) {
    try {
      infer_types(op, {inputs, example.attrs});
      return true;
    } catch (const InternalError&) {
      return false;
    }
  };
  const auto as_reals = [](const TensorType& type) {
    return is_floating(type.dtype) || type.dtype == DType::kBool ? type : TensorType{DType::kF64, type.shape};
  };
  int indexed = 0;
  for_each_example([&](const OpDef& op, const test::Example& example) {
    if (op.has(Trait::kElementwise) || op.has(Trait::kRandom)) return;
    std::vector<TensorType> reals;
    for (const TensorType& type : example.inputs) reals.push_back(as_reals(type));
    for (size_t i = 0; i < reals.size(); ++i) {
      std::vector<TensorType> inputs = example.inputs;
      inputs[i] = reals[i];
      if (takes(op, example, inputs) || takes(op, example, reals)) continue;
      if (op.is_core()) {
        ASSERT_TRUE(op.index_use.has_value()) << op.name << " has indices in operand " << i << " and no index_use";
        EXPECT_EQ(op.index_use->indices, i);
      }
      ++indexed;
    }
    EXPECT_TRUE(op.index_use || !op.has(Trait::kSelects)) << "selects by what?";
    if (!op.index_use) return;
    const size_t of = op.index_use->indexed;
    ASSERT_LT(of, op.min_inputs);
    EXPECT_NE(of, op.index_use->indices);
    EXPECT_FALSE(example.inputs[of].shape.empty());
    EXPECT_EQ(op.index_use->ignores, example.attrs.find("ignore_index") != nullptr);
  });
  EXPECT_GT(indexed, 8);
}

TEST(OpTable, OnlyCompositesDecomposeAndNoneHasABody) {
  for (const OpFamily& family : op_families())
    for (const OpDef& op : family.ops) {
      EXPECT_EQ(op.has(Trait::kComposite), op.decompose != nullptr) << op.name;
      EXPECT_EQ(op.has(Trait::kElementwise), op.body != nullptr) << op.name;
      EXPECT_FALSE(op.decompose != nullptr && op.body != nullptr) << op.name;
      EXPECT_EQ(op.family, family.name);
    }
}

// A decomposition gives the op's types also in bf16, where it computes in f32.
TEST(OpTable, DecompositionsKeepTypesInEveryPrecision) {
  for_each_example([](const OpDef& op, const test::Example& example) {
    if (op.decompose == nullptr) return;
    const bool takes_float8 =
        std::ranges::any_of(example.inputs, [](const TensorType& type) { return is_float8(type.dtype); });
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
      GraphBuilder b;
      OpCall call = {example.inputs, example.attrs};
      std::vector<TensorId> inputs;
      for (size_t i = 0; i < call.inputs.size(); ++i) {
        TensorType& type = call.inputs[i];
        const bool is_number = type.shape.empty();
        const bool is_statistic = op.name == "layer_norm_backward" && (i == 2 || i == 3);
        const bool is_row = op.name == "linear_cross_entropy" && i >= 3;
        const bool is_wide = is_statistic || is_row || (op.name == "attention_backward" && i == 5);
        if (is_floating(type.dtype) && !is_number && !takes_float8)
          type.dtype = is_wide && dtype == DType::kBF16 ? DType::kF32 : dtype;
        inputs.push_back(b.graph().add_input({InputKind::kBatch, str("{}", i), {}, {}, 0}, type));
      }
      const std::vector<TensorType> types = infer_types(op, call);
      const std::vector<TensorId> made = op.decompose(b, inputs, example.attrs);
      ASSERT_EQ(made.size(), types.size());
      for (size_t r = 0; r < types.size(); ++r)
        EXPECT_EQ(to_text(b.type(made[r])), to_text(types[r])) << name_of(dtype);
    }
  });
}

TEST(OpTable, CostsCountWhatIsDone) {
  const OpDef& matmul = op_def("matmul");
  const OpCall call = {{test::f64({8, 32}), test::f64({32, 4})}, complete_attrs(matmul, {})};
  EXPECT_EQ(flops_of(matmul, call), 2.0 * 8 * 32 * 4);
  EXPECT_EQ(bytes_moved(matmul, call), 8.0 * (8 * 32 + 32 * 4 + 8 * 4));
  const OpDef& take = op_def("take");
  const OpCall lookup = {{test::f64({1000, 4}), test::i64({3})}, {{"dim", int64_t{0}}}};
  EXPECT_EQ(bytes_moved(take, lookup), 8.0 * (2 * 3 * 4 + 3)) << "only the rows that are read count";
  const OpDef& reshape = op_def("reshape");
  EXPECT_EQ(bytes_moved(reshape, {{test::f64({4})}, {{"shape", Shape{2, 2}}}}), 0.0);
  for_each_example([](const OpDef& op, const test::Example& example) {
    EXPECT_GE(flops_of(op, {example.inputs, example.attrs}), 0.0);
    EXPECT_GE(bytes_moved(op, {example.inputs, example.attrs}), 0.0);
  });
}

void expect_refused(std::string_view op, const std::vector<TensorType>& inputs, Attrs attrs, const std::string& text) {
  try {
    infer_types(op_def(op), {inputs, complete_attrs(op_def(op), std::move(attrs))});
    FAIL() << op << " was accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(OpTable, MisuseIsRefusedByName) {
  using test::f64;
  using test::i64;
  expect_refused("add", {f64({4})}, {}, "add takes 2 to 2 operands and has 1");
  expect_refused("add", {f64({4}), i64({4})}, {}, "operand 1");
  expect_refused("add", {f64({4}), f64({3})}, {}, "does not broadcast");
  expect_refused("exp", {i64({4})}, {}, "i64 is no floating-point type");
  expect_refused("matmul", {f64({4, 3}), f64({4, 3})}, {}, "the contracted dimension");
  expect_refused("reshape", {f64({4})}, {{"shape", Shape{5}}}, "elements of the two shapes");
  expect_refused("transpose", {f64({4, 2})}, {{"permutation", Shape{0, 0}}}, "is no permutation");
  expect_refused("slice", {f64({4})}, {{"starts", Shape{2}}, {"shape", Shape{3}}, {"steps", Shape{1}}}, "window");
  expect_refused("sum", {f64({4})}, {{"dims", Shape{1}}}, "dimension 1 of 1");
  expect_refused("sum", {f64({4})}, {}, "sum needs the attribute 'dims'");
  expect_refused("neg", {f64({4})}, {{"dims", Shape{1}}}, "neg has no attribute 'dims'");
  expect_refused("sum", {f64({4})}, {{"dims", int64_t{0}}}, "'dims' is 0, of the wrong kind");
  EXPECT_THROW(op_def("nothing"), InternalError);
}

TEST(OpTable, PageIsFresh) {
  EXPECT_EQ(read_text(STEPC_SOURCE_DIR "/docs/ops.md", 1 << 20), ops_page()) << "run: irtool --ops > docs/ops.md";
}

}  // namespace
}  // namespace stepc
