// Calls of every op of the table, for tests that walk it.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "interp/array.h"
#include "ops/op_def.h"

namespace stepc::test {

struct Example {
  std::vector<TensorType> inputs;
  Attrs attrs;
  int64_t index_below = 4;  // integer operands hold 0 and up, below this
};

inline TensorType f64(Shape shape) { return {DType::kF64, std::move(shape)}; }
inline TensorType i64(Shape shape) { return {DType::kI64, std::move(shape)}; }
inline TensorType boolean(Shape shape) { return {DType::kBool, std::move(shape)}; }

inline std::vector<Example> elementwise_examples(const OpDef& op) {
  std::vector<Example> out;
  const std::string_view name = op.name;
  const bool integer = name.starts_with("bitwise");
  const auto typed = [&](Shape shape) { return integer ? i64(std::move(shape)) : f64(std::move(shape)); };
  if (name == "where") return {{{boolean({4, 1}), f64({4, 6}), f64({6})}, {}, 4}};
  if (name == "cast") return {{{f64({4, 6})}, {{"dtype", DType::kF32}}, 4}, {{i64({4})}, {{"dtype", DType::kF64}}, 9}};
  if (op.max_inputs == 1) return {{{typed({4, 6})}, {}, 4}, {{typed({})}, {}, 4}, {{typed({0, 2})}, {}, 4}};
  return {{{typed({4, 6}), typed({4, 6})}, {}, 4},
          {{typed({4, 1, 2}), typed({6, 2})}, {}, 4},
          {{typed({4}), typed({})}, {}, 4}};
}

inline const std::multimap<std::string, Example>& other_examples() {
  const auto number = [] { return f64({}); };
  const Attrs rows = {{"dim", int64_t{0}}};
  const Attrs columns = {{"dim", int64_t{1}}};
  const TensorType rng = i64({2});
  static const std::multimap<std::string, Example> kTable = {
      {"reshape", {{f64({6, 4})}, {{"shape", Shape{2, 3, 4}}}}},
      {"reshape", {{f64({4, 3, 2})}, {{"shape", Shape{4, 6}}}}},
      {"reshape", {{f64({4, 6})}, {{"shape", Shape{8, 3}}}}},
      {"transpose", {{f64({2, 4, 6})}, {{"permutation", Shape{2, 0, 1}}}}},
      {"expand", {{f64({4, 1})}, {{"shape", Shape{2, 4, 6}}}}},
      {"slice", {{f64({4, 6})}, {{"starts", Shape{0, 1}}, {"shape", Shape{4, 2}}, {"steps", Shape{1, 3}}}}},
      {"update_slice", {{f64({4, 6}), f64({4, 2})}, {{"starts", Shape{0, 1}}, {"steps", Shape{1, 3}}}}},
      {"slice", {{f64({4, 12})}, {{"starts", Shape{0, 4}}, {"shape", Shape{4, 4}}, {"steps", Shape{1, 1}}}}},
      {"update_slice", {{f64({4, 9}), f64({2, 3})}, {{"starts", Shape{2, 6}}, {"steps", Shape{1, 1}}}}},
      {"pad", {{f64({4, 2})}, {{"low", Shape{0, 1}}, {"high", Shape{2, 0}}}}},
      {"pad", {{f64({4, 6})}, {{"low", Shape{0, 12}}, {"high", Shape{4, 6}}}}},
      {"concat", {{f64({4, 2}), f64({4, 3})}, columns}},
      {"concat", {{f64({4, 3}), f64({4, 3}), f64({4, 3})}, columns}},
      {"reverse", {{f64({4, 6})}, {{"dims", Shape{1}}}}},
      {"as_strided", {{f64({12})}, {{"shape", Shape{3, 4}}, {"strides", Shape{2, 1}}, {"offset", int64_t{1}}}}},
      {"as_strided_scatter", {{f64({12}), f64({3, 2})}, {{"strides", Shape{4, 1}}, {"offset", int64_t{1}}}}},
      {"bitcast", {{f64({4, 2})}, {{"dtype", DType::kI32}}}},
      {"sum", {{f64({4, 6, 2})}, {{"dims", Shape{1}}}}},
      {"sum", {{f64({4, 6})}, {{"dims", Shape{0, 1}}, {"keepdim", true}}}},
      {"prod", {{f64({4, 6})}, {{"dims", Shape{1}}}}},
      {"max", {{f64({4, 6})}, {{"dims", Shape{1}}}}},
      {"min", {{f64({4, 6})}, {{"dims", Shape{0}}, {"keepdim", true}}}},
      {"any", {{boolean({4, 6})}, {{"dims", Shape{1}}}}},
      {"all", {{boolean({4, 6})}, {{"dims", Shape{1}}}}},
      {"mean", {{f64({4, 6})}, {{"dims", Shape{1}}}}},
      {"argmax", {{f64({4, 6})}, columns}},
      {"argmin", {{f64({4, 6})}, columns}},
      {"cumsum", {{f64({4, 6})}, columns}},
      {"matmul", {{f64({4, 6}), f64({6, 2})}, {}}},
      {"matmul", {{f64({2, 6, 4}), f64({2, 8, 6})}, {{"transpose_a", true}, {"transpose_b", true}}}},
      {"scaled_matmul",
       {{{DType::kF8E4M3, {4, 6}}, {DType::kF8E4M3, {2, 6}}, {DType::kF32, {1, 1}}, {DType::kF32, {1, 1}}},
        {{"transpose_b", true}, {"dtype", DType::kF32}}}},
      {"scaled_matmul",
       {{{DType::kF8E5M2, {6, 4}}, {DType::kF8E4M3, {6, 2}}, {DType::kF32, {4, 1}}, {DType::kF32, {1, 2}}},
        {{"transpose_a", true}, {"dtype", DType::kF32}}}},
      {"softmax", {{f64({4, 6})}, columns}},
      {"log_softmax", {{f64({4, 6})}, columns}},
      {"softmax_backward", {{f64({4, 6}), f64({4, 6})}, columns}},
      {"log_softmax_backward", {{f64({4, 6}), f64({4, 6})}, rows}},
      {"layer_norm", {{f64({4, 2, 6}), f64({6}), f64({6})}, {{"dims", int64_t{1}}, {"eps", 1e-5}}}},
      {"layer_norm_backward",
       {{f64({4, 2, 6}), f64({4, 2, 6}), f64({4, 2, 1}), f64({4, 2, 1}), f64({6})}, {{"dims", int64_t{1}}}}},
      {"attention", {{f64({2, 4, 6, 2}), f64({2, 2, 6, 2}), f64({2, 2, 6, 4})}, {{"scale", 0.5}, {"causal", true}}}},
      {"attention",
       {{f64({2, 4, 3, 2}), f64({2, 4, 5, 2}), f64({2, 4, 5, 2}), f64({2, 1, 3, 5})},
        {{"scale", 0.5}, {"causal", false}}}},
      {"attention",
       {{f64({2, 6, 4, 2}), f64({2, 2, 5, 2}), f64({2, 2, 5, 2}), f64({4, 5})}, {{"scale", 0.5}, {"causal", false}}}},
      {"attention",
       {{f64({2, 4, 3, 2}), f64({2, 2, 3, 2}), f64({2, 2, 3, 2}), i64({2, 3}), i64({2, 3})},
        {{"scale", 0.5}, {"causal", true}},
        1}},
      {"attention",
       {{f64({2, 4, 3, 2}), f64({2, 2, 5, 2}), f64({2, 2, 5, 2}), i64({2, 3}), i64({1, 5}), i64({1, 3}), i64({1, 5})},
        {{"scale", 0.5}, {"causal", false}},
        1}},
      {"attention_backward",
       {{f64({2, 4, 3, 2}), f64({2, 4, 3, 2}), f64({2, 2, 3, 2}), f64({2, 2, 3, 2}), f64({2, 4, 3, 2}), f64({2, 4, 3}),
         i64({2, 3}), i64({2, 3})},
        {{"scale", 0.5}, {"causal", true}},
        1}},
      {"attention_backward",
       {{f64({2, 6, 4, 4}), f64({2, 6, 4, 2}), f64({2, 2, 5, 2}), f64({2, 2, 5, 4}), f64({2, 6, 4, 4}), f64({2, 6, 4})},
        {{"scale", 0.5}, {"causal", false}}}},
      {"attention_backward",
       {{f64({2, 4, 6, 4}), f64({2, 4, 6, 2}), f64({2, 2, 6, 2}), f64({2, 2, 6, 4}), f64({2, 4, 6, 4}), f64({2, 4, 6})},
        {{"scale", 0.5}, {"causal", true}}}},
      {"gather", {{f64({4, 6}), i64({4, 2})}, columns}},
      {"scatter", {{f64({4, 6}), i64({4, 2}), f64({4, 2})}, columns}},
      {"scatter_add", {{f64({4, 6}), i64({4, 8}), f64({4, 8})}, columns}},
      {"take", {{f64({4, 6}), i64({2, 3})}, rows}},
      {"put", {{f64({4, 6}), i64({2}), f64({2, 6})}, rows}},
      {"put_add", {{f64({4, 6}), i64({8}), f64({8, 6})}, rows}},
      {"sort", {{f64({4, 6})}, {{"dim", int64_t{1}}, {"descending", true}}}},
      {"full", {{}, {{"shape", Shape{4, 6}}, {"dtype", DType::kF32}, {"value", 2.5}}}},
      {"constant", {{}, {{"shape", Shape{2}}, {"dtype", DType::kF64}, {"reals", std::vector<double>{1.5, -2}}}}},
      {"iota", {{}, {{"shape", Shape{4, 6}}, {"dtype", DType::kI64}, {"dim", int64_t{1}}, {"start", int64_t{3}}}}},
      {"random_uniform", {{rng}, {{"shape", Shape{4}}, {"dtype", DType::kF32}, {"stream", int64_t{7}}}}},
      {"random_normal", {{rng}, {{"shape", Shape{4}}, {"dtype", DType::kF32}, {"stream", int64_t{7}}}}},
      {"random_uniform", {{rng}, {{"shape", Shape{3, 4}}, {"dtype", DType::kF64}, {"stream", int64_t{7}}}}},
      {"random_normal", {{rng, i64({4})}, {{"shape", Shape{4}}, {"dtype", DType::kF32}, {"stream", int64_t{7}}}, 1000}},
      {"nll_loss", {{f64({4, 6}), i64({4})}, {{"ignore_index", int64_t{2}}}}},
      {"nll_loss_backward", {{f64({4}), i64({4})}, {{"ignore_index", int64_t{2}}, {"classes", int64_t{6}}}}},
      {"matmul_add", {{f64({4, 5}), f64({4, 3}), f64({5, 3})}, {{"transpose_b", true}}}},
      {"matmul_bias", {{f64({5}), f64({3, 4}), f64({3, 5})}, {{"transpose_a", true}}}},
      {"matmul_bias", {{f64({5}), f64({4, 3}), f64({3, 5})}, {{"relu", true}}}},
      {"linear_cross_entropy", {{f64({6, 2}), f64({4, 2}), i64({6})}, {{"gradient_dtype", DType::kF64}}}},
      {"linear_cross_entropy",
       {{f64({6, 2}), f64({4, 2}), i64({6}), f64({6})},
        {{"gradient_dtype", DType::kF64}, {"ignore_index", int64_t{2}}}}},
      {"linear_cross_entropy",
       {{f64({6, 2}), f64({4, 2}), i64({6}), f64({6}), f64({6})},
        {{"gradient_dtype", DType::kF32}, {"ignore_index", int64_t{1}}, {"frozen", true}}}},
      {"adamw_update",
       {{f64({4, 6}), f64({4, 6}), f64({4, 6}), f64({4, 6}), number(), number(), number(), number(), number(),
         number()},
        {}}},
      {"reshard", {{f64({4, 6})}, {}}},
      {"average", {{f64({4, 6})}, {{"ranks", int64_t{2}}}}},
      {"all_gather", {{f64({4, 6})}, {{"axes", Shape{0}}, {"ranks", int64_t{2}}}}},
      {"reduce_scatter", {{f64({2, 6})}, {{"axes", Shape{0}}, {"ranks", int64_t{2}}, {"reduce", std::string("sum")}}}},
      {"all_reduce", {{f64({4, 6})}, {{"axes", Shape{0, 1}}, {"ranks", int64_t{4}}, {"reduce", std::string("max")}}}},
      {"all_to_all", {{f64({2, 6})}, {{"axes", Shape{0}}, {"ranks", int64_t{2}}}}},
      {"rotate", {{f64({4, 6})}, {{"axes", Shape{0}}, {"ranks", int64_t{3}}, {"by", int64_t{2}}}}},
      {"wait", {{f64({2, 4, 6}), f64({3}), f64({4, 6}), f64({3})}, {}}},
      {"sgd_update",
       {{f64({4, 6}), f64({4, 6}), f64({4, 6}), number(), number(), number(), number()}, {{"nesterov", true}}}},
  };
  return kTable;
}

// Empty: the op has no example, which is an error of the test.
inline std::vector<Example> examples_of(const OpDef& op) {
  if (op.body != nullptr) return elementwise_examples(op);
  std::vector<Example> out;
  const auto [begin, end] = other_examples().equal_range(std::string(op.name));
  for (auto it = begin; it != end; ++it) out.push_back(it->second);
  return out;
}

// Positive numbers from 0.25 to 2, so that every op is defined on them.
inline std::vector<Array> operands_of(const Example& example, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Array> out;
  for (const TensorType& type : example.inputs) {
    Array array(type);
    for (int64_t i = 0; i < array.count(); ++i) {
      if (array.is_real())
        array.set(i, 0.25 + static_cast<double>(random() % 1000) * 0.00175);
      else
        array.set(i, static_cast<int64_t>(random() % static_cast<uint64_t>(example.index_below)));
    }
    out.push_back(std::move(array));
  }
  return out;
}

}  // namespace stepc::test
