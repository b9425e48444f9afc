#include "interp/array.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/check.h"
#include "interp/interpret.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

TEST(Array, BytesAreWhatAMachineHolds) {
  Array half({DType::kF16, {4}});
  for (auto [i, value] : {std::pair<int64_t, double>{0, 1.0}, {1, -2.5}, {2, 0x1p-24}, {3, 65504.0}})
    half.set(i, value);
  EXPECT_EQ(to_bytes(half), (std::vector<uint8_t>{0x00, 0x3C, 0x00, 0xC1, 0x01, 0x00, 0xFF, 0x7B}));
  Array brain({DType::kBF16, {2}});
  brain.set(0, 1.0);
  brain.set(1, -3.0);
  EXPECT_EQ(to_bytes(brain), (std::vector<uint8_t>{0x80, 0x3F, 0x40, 0xC0}));
  // The least of both, what rounds to the largest, and what is beyond it, without infinities the largest too.
  const std::vector<double> numbers = {1.0, -0x1p-9, 464.0, 465.0, -HUGE_VAL};
  Array e4m3({DType::kF8E4M3, {5}});
  for (size_t i = 0; i < numbers.size(); ++i) e4m3.set(static_cast<int64_t>(i), numbers[i]);
  EXPECT_EQ(to_bytes(e4m3), (std::vector<uint8_t>{0x38, 0x81, 0x7E, 0x7E, 0xFE}));
  const std::vector<double> wide = {1.0, -0x1p-16, 61439.0, 61440.0, -HUGE_VAL};
  Array e5m2({DType::kF8E5M2, {5}});
  for (size_t i = 0; i < wide.size(); ++i) e5m2.set(static_cast<int64_t>(i), wide[i]);
  EXPECT_EQ(to_bytes(e5m2), (std::vector<uint8_t>{0x3C, 0x81, 0x7B, 0x7C, 0xFC}));
}

TEST(Array, EveryDtypeRoundTripsThroughBytes) {
  for (DType dtype : {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kI32, DType::kI64, DType::kF16,
                      DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2}) {
    Array array({dtype, {7}});
    for (int64_t i = 0; i < 7; ++i)
      array.set(i, is_floating(dtype) ? static_cast<double>(i) * 0.375 - 1 : double(i % 2));
    if (is_floating(dtype)) {
      array.set(5, static_cast<double>(NAN));
      array.set(6, -HUGE_VAL);
    }
    EXPECT_TRUE(same_bits(from_bytes(array.type, to_bytes(array)), array)) << name_of(dtype);
  }
}

TEST(Array, SameBitsTellsZerosApart) {
  Array a({DType::kF32, {1}});
  Array b = a;
  b.set(0, -0.0);
  EXPECT_FALSE(same_bits(a, b));
  EXPECT_EQ(largest_error(a, b), 0.0);
  b.set(0, static_cast<double>(NAN));
  EXPECT_EQ(largest_error(a, b), HUGE_VAL);
}

TEST(Interpret, RunsNodesInOrderAndFreesNothingThatIsStillRead) {
  const Graph graph = parse_graph(
      "stepc.graph 1\n"
      "input %0: f32[2] = parameter \"w\"\n"
      "%1: f32[2] = add(%0, %0) | forward \"\"\n"
      "%2: f32[2] = mul(%1, %0) | forward \"\"\n"
      "update %0 = %2\n"
      "return %1\n"
      "return none\n");
  Array w({DType::kF32, {2}});
  w.set(0, 3.0);
  w.set(1, -1.0);
  const std::vector<Array> out = interpret(graph, {w});
  EXPECT_EQ(out[0].reals, (std::vector<double>{18, 2}));
  EXPECT_EQ(out[1].reals, (std::vector<double>{6, -2}));
  EXPECT_EQ(out[2].count(), 1) << "an undefined return is an empty Array";
}

TEST(Interpret, OpaqueNodesAreRefusedByName) {
  const Graph graph = parse_graph(
      "stepc.graph 1\n"
      "input %0: f32[2] = batch \"x\"\n"
      "%1: f32[2] = aten::frob(%0, 2) -> % | forward \"net.0\"\n"
      "return %1\n");
  EXPECT_USER_ERROR(interpret(graph, {Array({DType::kF32, {2}})}), "aten::frob (in 'net.0') is no op of stepc's own");
}

TEST(Interpret, InDoubleRoundsNothing) {
  const Graph graph = parse_graph(
      "stepc.graph 1\n"
      "input %0: bf16[1] = batch \"x\"\n"
      "%1: bf16[1] = mul(%0, %0) | forward \"\"\n"
      "%2: f32[1] = cast(%1) {dtype=f32} | forward \"\"\n"
      "return %2\n");
  Array x({DType::kBF16, {1}});
  x.set(0, 1.0 + 0x1p-7);
  const double exact = (1.0 + 0x1p-7) * (1.0 + 0x1p-7);
  EXPECT_NE(interpret(graph, {x})[0].reals[0], exact);
  EXPECT_EQ(interpret(in_double(graph), {in_double(x)})[0].reals[0], exact);
}

}  // namespace
}  // namespace stepc
