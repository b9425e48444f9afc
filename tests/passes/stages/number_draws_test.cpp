// What parts of a step draw that were captured apart: the numbers of the whole step.
#include "passes/stages/number_draws.h"

#include <gtest/gtest.h>

#include "interp/interpret.h"

namespace stepc {
namespace {

Graph drawing(int64_t rows) {
  return parse_graph(str(R"(stepc.graph 1
input %0: i64[2] = rng ""
input %1: f32[{0}, 3] = batch "0"
%2: f32[{0}, 3] = random_uniform(%0) {{dtype=f32, shape=[{0}, 3], stream=2}} | forward "m"
%3: f32[{0}, 3] = mul(%1, %2) | forward "m"
return %3
)",
                         rows));
}

Array array_of(const TensorType& type, const std::vector<double>& values) {
  Array array(type);
  for (int64_t i = 0; i < array.count(); ++i) array.set(i, values.at(static_cast<size_t>(i)));
  return array;
}

Array integers(const Shape& shape, const std::vector<int64_t>& values) {
  Array array(TensorType{DType::kI64, shape});
  for (int64_t i = 0; i < array.count(); ++i) array.set(i, values.at(static_cast<size_t>(i)));
  return array;
}

TEST(NumberDraws, MicroBatchesDrawTheirRowsOfTheWholeBatch) {
  const Array rng = integers({2}, {7, 5});
  const std::vector<double> ones(12, 1.0);
  const Graph whole = drawing(4);
  const Array all = interpret(whole, {rng, array_of({DType::kF32, {4, 3}}, ones)}).at(0);
  const Graph part = draw_as_rows(drawing(2), 4);
  verify(part);
  ASSERT_EQ(part.inputs.size(), 3U);
  EXPECT_EQ(part.inputs[2].key, "4");
  for (int64_t turn = 0; turn < 2; ++turn) {
    const Array rows = interpret(part, {rng, array_of({DType::kF32, {2, 3}}, ones), integers({}, {turn})}).at(0);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(rows.real(i), all.real(6 * turn + i)) << turn << i;
  }
}

TEST(NumberDraws, WhatComesBehindDrawsOnwards) {
  const Graph behind = draw_behind(drawing(2), drawing(4));
  EXPECT_EQ(behind.nodes[0].attrs.get<int64_t>("stream"), 5);
  const Graph silent = parse_graph("stepc.graph 1\ninput %0: f32[2] = batch \"0\"\nreturn %0\n");
  EXPECT_EQ(draw_behind(drawing(2), silent), drawing(2));
  EXPECT_EQ(draw_as_rows(silent, 4), silent);
}

}  // namespace
}  // namespace stepc
