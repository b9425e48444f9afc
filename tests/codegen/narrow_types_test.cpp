// How kernels round to bf16, f16 and float8 and read them: over every one of them, over f32 at and around every tie,
// and over numbers that are none, are too large or too small; in memory and in registers, for this CPU and for the
// plainest one.
#include <array>
#include <bit>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "ops/f8_bits.h"
#include "ops/graph_builder.h"
#include "ops/rounding.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/run_kernel.h"

namespace stepc {
namespace {

constexpr std::array kNarrow = {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2};

std::vector<float> arguments() {
  std::vector<float> out;
  const auto add = [&](uint32_t bits) { out.push_back(std::bit_cast<float>(bits)); };
  // Every bf16: itself, halfway to the next one, a little less and a little more.
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (uint32_t lower : {0x0U, 0x1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) add((upper << 16) | lower);
  // The ties of f16 lie at 12 bits.
  std::mt19937 random(11);
  for (int i = 0; i < 60000; ++i) {
    const auto number = static_cast<uint32_t>(random());
    for (uint32_t lower : {0x0U, 0xFFFU, 0x1000U, 0x1001U}) add((number & 0xFFFFE000) | lower);
    add(number);
  }
  return out;
}

Array run_one(KernelCompiler& compiler, const Graph& graph, const Array& input) {
  return run_kernel(compiler, graph, {input})[0];
}

// `have` as f32 is `want` rounded to `dtype`, bit by bit but for the bits of NaN.
void expect_rounded(const Array& have, const std::vector<float>& want, DType dtype) {
  for (size_t i = 0; i < want.size(); ++i) {
    const auto found = static_cast<float>(have.reals[i]);
    const auto right = static_cast<float>(rounded(static_cast<double>(want[i]), dtype));
    if (std::isnan(right) && std::isnan(found)) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(right))
        << want[i] << " to " << name_of(dtype) << ", element " << i;
  }
}

TEST(NarrowTypes, AreRoundedToTheNearest) {
  const std::vector<float> numbers = arguments();
  const Shape shape = {static_cast<int64_t>(numbers.size())};
  Array input(TensorType{DType::kF32, shape});
  for (size_t i = 0; i < numbers.size(); ++i) input.reals[i] = static_cast<double>(numbers[i]);
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    for (DType dtype : kNarrow) {
      SCOPED_TRACE(str("{} on {}", name_of(dtype), target.name));
      GraphBuilder stored;
      group_output(stored, stored.cast(group_input(stored, DType::kF32, shape), dtype));
      expect_rounded(run_one(compiler, stored.graph(), input), numbers, dtype);
      GraphBuilder kept;
      group_output(kept, kept.cast(kept.cast(group_input(kept, DType::kF32, shape), dtype), DType::kF32));
      expect_rounded(run_one(compiler, kept.graph(), input), numbers, dtype);
      if (HasFatalFailure()) return;
    }
  }
}

// Every pattern of 8 bits, as f32 and back.
TEST(NarrowTypes, Float8IsReadAsItIs) {
  const Shape shape = {256 - 5};
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    for (DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
      SCOPED_TRACE(str("{} on {}", name_of(dtype), target.name));
      GraphBuilder b;
      const TensorId x = group_input(b, dtype, shape);
      group_output(b, b.cast(x, DType::kF32));
      group_output(b, b.add("neg", {x}));
      const auto kernel = compiler.compile(lower(b.graph()));
      std::vector<uint8_t> from(256), negated(256, 0xEE);
      std::vector<float> wide(256);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 37);
      run_phases(*kernel, {from.data(), wide.data(), negated.data()}, Cuts::kWhole);
      for (size_t i = 0; i < static_cast<size_t>(shape[0]); ++i) {
        const double value = f8_value(from[i], dtype);
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(wide[i])) << int{from[i]};
          ASSERT_EQ(negated[i] & 0x7F, 0x7F) << int{from[i]};
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(static_cast<float>(value)))
              << int{from[i]};
          ASSERT_EQ(negated[i], from[i] ^ 0x80) << int{from[i]};
        }
      }
      ASSERT_EQ(negated[static_cast<size_t>(shape[0])], 0xEE) << "written past its end";
    }
  }
}

// Every pattern of 16 bits, from memory to memory.
TEST(NarrowTypes, AreReadAndWrittenAsTheyAre) {
  const Shape shape = {0x10000 - 5};  // whole vectors, and a rest
  for (const CpuTarget& target : {host_cpu(), generic_cpu()}) {
    KernelCompiler compiler(target);
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(str("{} on {}", name_of(dtype), target.name));
      GraphBuilder b;
      group_output(b, b.add("neg", {group_input(b, dtype, shape)}));
      const auto kernel = compiler.compile(lower(b.graph()));
      std::vector<uint16_t> from(0x10000);
      std::vector<uint16_t> to(0x10000, 0xEEEE);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i * 40503);
      run_phases(*kernel, {from.data(), to.data()}, Cuts::kWhole);
      const int infinity = dtype == DType::kBF16 ? 0x7F80 : 0x7C00;
      for (size_t i = 0; i < static_cast<size_t>(shape[0]); ++i) {
        const bool is_nan = (from[i] & 0x7FFF) > infinity;
        if (is_nan)
          ASSERT_GT(to[i] & 0x7FFF, infinity) << i;
        else
          ASSERT_EQ(to[i], from[i] ^ 0x8000) << i;
      }
      ASSERT_EQ(to[static_cast<size_t>(shape[0])], 0xEEEE) << "written past its end";
    }
  }
}

}  // namespace
}  // namespace stepc
