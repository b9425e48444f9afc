#include "runtime/aten_ops.h"

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "interp/evaluate.h"
#include "runtime/opaque_call.h"
#include "tests/ops/op_examples.h"
#include "tests/runtime/arrays.h"

namespace stepc {
namespace {

using test::array_of;
using test::tensor_of;

// The same elements, not side by side.
at::Tensor with_gaps(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.back() *= 2;
  return at::zeros(sizes, tensor.options()).slice(-1, 0, sizes.back(), 2).copy_(tensor);
}

class AtenOps : public testing::TestWithParam<bool> {};

// Every core op has a call, and it does what the interpreter does, on operands with gaps too.
TEST_P(AtenOps, AgreeWithTheInterpreter) {
  const bool gaps = GetParam();
  for (const OpFamily& family : op_families()) {
    for (const OpDef& op : family.ops) {
      const bool needs_call = op.decompose == nullptr || op.has(Trait::kOwnKernel);
      EXPECT_TRUE(!needs_call || has_aten_op(op.name)) << op.name;
      if (!has_aten_op(op.name) || op.name == "attention_backward") continue;  // its operands are related
      for (const test::Example& example : test::examples_of(op)) {
        const Attrs attrs = complete_attrs(op, example.attrs);
        const std::vector<Array> operands = test::operands_of(example, 3);
        const std::vector<TensorType> types = infer_types(op, {example.inputs, attrs});
        if (op.name == "attention" && example.inputs[0].shape[3] != example.inputs[2].shape[3]) continue;
        std::vector<at::Tensor> inputs;
        for (const Array& operand : operands)
          inputs.push_back(gaps ? with_gaps(tensor_of(operand)) : tensor_of(operand));
        Node node;
        node.op = op.name;
        node.attrs = attrs;
        const std::vector<at::Tensor> results = run_aten_op(node, inputs, types);
        const std::vector<Array> expected = evaluate(op, operands, attrs);
        for (size_t r = 0; r < results.size(); ++r)
          EXPECT_LE(largest_error(array_of(results[r], types[r]), expected[r]), 1e-6) << op.name << " result " << r;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Strides, AtenOps, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "gaps" : "dense"); });

TEST(AtenOpsTable, AttentionsGradientIsTheInterpreters) {
  const OpDef& forward = op_def("attention");
  const test::Example example{{test::f64({2, 4, 6, 8}), test::f64({2, 2, 6, 8}), test::f64({2, 2, 6, 8})},
                              {{"scale", 0.3}, {"causal", true}}};
  std::vector<Array> operands = test::operands_of(example, 5);
  const std::vector<Array> results = evaluate(forward, operands, example.attrs);
  const Array gradient = test::operands_of({{test::f64({2, 4, 6, 8})}, {}, 4}, 6)[0];
  operands.insert(operands.begin(), gradient);
  operands.insert(operands.end(), results.begin(), results.end());
  const OpDef& backward = op_def("attention_backward");
  OpCall call{{}, example.attrs};
  std::vector<at::Tensor> inputs;
  for (const Array& operand : operands) {
    call.inputs.push_back(operand.type);
    inputs.push_back(tensor_of(operand));
  }
  const std::vector<TensorType> types = infer_types(backward, call);
  Node node;
  node.op = "attention_backward";
  node.attrs = example.attrs;
  const std::vector<at::Tensor> ours = run_aten_op(node, inputs, types);
  const std::vector<Array> expected = evaluate(backward, operands, example.attrs);
  for (size_t r = 0; r < ours.size(); ++r)
    EXPECT_LE(largest_error(array_of(ours[r], types[r]), expected[r]), 1e-5) << r;
}

TEST(OpaqueCall, CopiesWhatItWritesAndTakesNumbersFromTensors) {
  Node node;
  node.op = "aten::add_.Tensor";
  node.aten.emplace();
  node.aten->args = {ValueId(0), ValueId(1), ValueId(2)};
  node.aten->results = {std::monostate()};
  node.aten->writes = {0};
  const at::Tensor x = at::full({3}, 1.0);
  const std::vector<at::Tensor> outputs =
      OpaqueCall(node).run({x, at::full({3}, 2.0), at::full({}, 10.0, at::kDouble)});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(outputs[0].equal(at::full({3}, 21.0)));
  EXPECT_TRUE(x.equal(at::full({3}, 1.0)));
}

}  // namespace
}  // namespace stepc
