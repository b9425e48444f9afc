// Holds a group's kernel to the interpreter, and its calls to each other, whatever the cuts.
#pragma once

#include <cmath>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "loops/expand_math.h"
#include "tests/codegen/run_kernel.h"

namespace stepc {

// The largest finite magnitude anywhere in the group: what errors are relative to where large numbers cancel.
inline double largest_magnitude(const Graph& group, const std::vector<Array>& inputs) {
  Graph all = group;
  all.outputs.clear();
  for (size_t id = 0; id < group.tensors.size(); ++id) {
    all.outputs.emplace_back();
    all.outputs.back().tensor = TensorId(id);
  }
  double largest = 0;
  for (const Array& array : interpret(all, inputs))
    for (double value : array.reals)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

// Integers and bools exactly, NaN and infinities in the same places, the rest within `tolerance` of 1 + `scale`.
inline ::testing::AssertionResult alike(const Array& have, const Array& want, double tolerance, double scale) {
  if (!want.is_real())
    return have.integers == want.integers ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "integers";
  for (size_t i = 0; i < want.reals.size(); ++i) {
    const double a = have.reals[i];
    const double b = want.reals[i];
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (!(std::abs(a - b) <= tolerance * (1 + scale)))
      return ::testing::AssertionFailure() << "element " << i << " is " << a << " for " << b << ", scale " << scale;
  }
  return ::testing::AssertionSuccess();
}

// Half a unit of the last place of f32 or of the narrower types in it, a few times over.
inline double tolerance_of(const Graph& group) {
  double tolerance = 1e-13;
  for (const GraphTensor& tensor : group.tensors) {
    if (tensor.type.dtype == DType::kF32) tolerance = std::max(tolerance, 4e-6);
    if (tensor.type.dtype == DType::kF16) tolerance = std::max(tolerance, 4e-3);
    if (tensor.type.dtype == DType::kBF16) tolerance = std::max(tolerance, 3e-2);
    if (tensor.type.dtype == DType::kF8E4M3) tolerance = std::max(tolerance, 8e-2);  // a unit of the largest
    if (tensor.type.dtype == DType::kF8E5M2) tolerance = std::max(tolerance, 15e-2);
  }
  return tolerance;
}

inline void expect_kernel(KernelCompiler& compiler, const Graph& group, const std::vector<Array>& inputs) {
  ASSERT_EQ(why_not(group), "") << to_text(group);
  for (const LoopProgram& program : {lower(group), expand_math(lower(group))})
    ASSERT_EQ(parse_loop_program(to_text(program)), program) << to_text(program);
  const std::vector<Array> want = interpret(group, inputs);
  const std::vector<Array> have = run_kernel(compiler, group, inputs);
  const double scale = largest_magnitude(group, inputs);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(alike(have[i], want[i], tolerance_of(group), scale))
        << "output " << i << " of\n"
        << to_text(group) << to_text(lower(group)) << to_text(have[i]) << to_text(want[i]);
  for (Cuts cuts : {Cuts::kSingle, Cuts::kUneven}) {
    const std::vector<Array> again = run_kernel(compiler, group, inputs, cuts);
    for (size_t i = 0; i < have.size(); ++i)
      ASSERT_TRUE(same_bits(again[i], have[i])) << "cut otherwise, output " << i << " of\n" << to_text(group);
  }
}

}  // namespace stepc
