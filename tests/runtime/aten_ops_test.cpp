#include "runtime/aten_ops/aten_ops.h"

#include <bit>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "interp/evaluate.h"
#include "ops/f8_bits.h"
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
      const bool needs_call = op.is_core() && op.collective == Collective::kNone;
      EXPECT_TRUE(!needs_call || AtenOp::exists(op.name)) << op.name;
      if (!AtenOp::exists(op.name) || op.name == "attention_backward") continue;  // its operands are related
      for (const test::Example& example : test::examples_of(op)) {
        const Attrs attrs = complete_attrs(op, example.attrs);
        const std::vector<Array> operands = test::operands_of(example, 3);
        const std::vector<TensorType> types = infer_types(op, {example.inputs, attrs});
        if (op.name == "attention" && example.inputs[0].shape[3] != example.inputs[2].shape[3]) continue;
        std::vector<at::Tensor> inputs;
        for (const Array& operand : operands)
          inputs.push_back(gaps ? with_gaps(tensor_of(operand)) : tensor_of(operand));
        const std::vector<at::Tensor> results = AtenOp(op.name)(inputs, attrs, types);
        const std::vector<Array> expected = evaluate(op, operands, attrs);
        for (size_t r = 0; r < results.size(); ++r)
          EXPECT_LE(largest_error(array_of(results[r], types[r]), expected[r]), 1e-6) << op.name << " result " << r;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Strides, AtenOps, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "gaps" : "dense"); });

// Over every bf16, ties of both types and their neighbours, and random numbers: the same bytes but for the sign of NaN.
// Before torch 2.15 what e4m3 does not hold became NaN.
TEST(AtenOpsTable, CastsToFloat8AreTorchs) {
  std::vector<float> numbers;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (uint32_t lower : {0x0U, 0x1U, 0xFFFFU}) numbers.push_back(std::bit_cast<float>((upper << 16) | lower));
  std::mt19937 random(5);
  for (int i = 0; i < 200000; ++i) numbers.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  const at::Tensor all = at::tensor(numbers);
  const bool saturates = !at::isnan(at::tensor(1e9F).to(at::kFloat8_e4m3fn).to(at::kFloat)).item<bool>();
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    const at::Tensor bytes = all.to(scalar_type_of(dtype)).view(at::kByte);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint8_t wanted = bytes.const_data_ptr<uint8_t>()[i];
      const double value = rounded(static_cast<double>(numbers[i]), dtype);
      if (!saturates && dtype == DType::kF8E4M3 && std::abs(numbers[i]) > 464) continue;
      ASSERT_EQ(f8_bits(value, dtype) & (std::isnan(value) ? 0x7F : 0xFF), wanted & (std::isnan(value) ? 0x7F : 0xFF))
          << numbers[i] << " to " << name_of(dtype);
      if (std::isnan(value)) continue;
      ASSERT_EQ(f8_value(wanted, dtype), value) << int{wanted};
    }
  }
}

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
  const std::vector<at::Tensor> ours = AtenOp("attention_backward")(inputs, example.attrs, types);
  const std::vector<Array> expected = evaluate(backward, operands, example.attrs);
  for (size_t r = 0; r < ours.size(); ++r)
    EXPECT_LE(largest_error(array_of(ours[r], types[r]), expected[r]), 1e-5) << r;
}

// Of narrow numbers, many rows of a transposed left operand go to the library some at a time.
TEST(AtenOpsTable, ANarrowProductOfATransposedOperandIsThatOfAllItsRows) {
  const at::Tensor left = at::randn({4, 3000}).to(at::kBFloat16);
  const at::Tensor right = at::randn({4, 700}).to(at::kBFloat16);
  const Attrs attrs = {{"transpose_a", true}, {"transpose_b", false}};
  const at::Tensor seen = AtenOp("matmul")({left, right}, attrs, {{DType::kBF16, {3000, 700}}})[0];
  const at::Tensor expected = at::mm(left.to(at::kDouble).t(), right.to(at::kDouble));
  EXPECT_TRUE(seen.is_contiguous() && seen.scalar_type() == at::kBFloat16);
  EXPECT_TRUE(at::allclose(seen.to(at::kDouble), expected, 1e-2, 1e-2));
}

// What an op that replaces elements makes of its first operand's is left where the caller wants it, perhaps on that
// operand itself.
// Of the blocks that a CPU without instructions for narrow types multiplies in: several each way, and their remains.
TEST(AtenOpsTable, NarrowProductsAreRoundedOnce) {
  using Shapes = std::pair<Shape, Shape>;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
    for (const auto& [left_shape, right_shape] :
         {Shapes{{530, 1040}, {1040, 600}}, Shapes{{2, 3, 70}, {70, 5}}, Shapes{{2, 600, 70}, {2, 70, 520}},
          Shapes{{3, 5, 9, 70}, {3, 5, 70, 8}}, Shapes{{4, 0}, {0, 3}}, Shapes{{0, 4}, {4, 3}}})
      for (const bool transposed : {false, true}) {
        const at::Tensor left = at::randn(left_shape).to(type), right = at::randn(right_shape).to(type);
        const at::Tensor expected = at::matmul(left.to(at::kDouble), right.to(at::kDouble));
        const Attrs attrs = {{"transpose_a", transposed}, {"transpose_b", !transposed}};
        const std::vector<at::Tensor> given = {transposed ? left.mT().contiguous() : left,
                                               transposed ? right : right.mT().contiguous()};
        const DType dtype = type == at::kHalf ? DType::kF16 : DType::kBF16;
        const at::Tensor seen = AtenOp("matmul")(given, attrs, {{dtype, expected.sizes().vec()}})[0];
        ASSERT_EQ(seen.sizes(), expected.sizes());
        const double ulp = type == at::kHalf ? 0x1p-11 : 0x1p-8;
        const at::Tensor bound = expected.abs() * (1.01 * ulp) + 1e-4 * std::sqrt(left.size(-1) + 1.0);
        EXPECT_TRUE(((seen.to(at::kDouble) - expected).abs() <= bound).all().item<bool>()) << expected.sizes();
      }
}

TEST(AtenOpsTable, OverwritingOpsLeaveTheResultInTheirTarget) {
  const Attrs rows = {{"dim", int64_t{0}}};
  const std::vector<TensorType> types = {{DType::kF32, {4, 2}}};
  const at::Tensor x = at::ones({4, 2}), index = at::tensor({1, 3}, at::kLong), values = at::full({2, 2}, 5.0);
  const AtenOp put("put");
  ASSERT_TRUE(put.overwrites());
  EXPECT_FALSE(AtenOp("take").overwrites());
  const at::Tensor expected = put({x, index, values}, rows, types)[0];
  EXPECT_TRUE(x.equal(at::ones({4, 2})));
  EXPECT_EQ(expected.sum().item<float>(), 24);
  const at::Tensor elsewhere = at::full({4, 2}, 99.0);
  EXPECT_TRUE(put({x, index, values}, rows, types, elsewhere)[0].is_alias_of(elsewhere));
  EXPECT_TRUE(elsewhere.equal(expected));
  EXPECT_TRUE(x.equal(at::ones({4, 2})));
  put({x, index, values}, rows, types, x);
  EXPECT_TRUE(x.equal(expected));
}

}  // namespace
}  // namespace stepc
