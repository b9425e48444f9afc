#include "train/report/line_chart.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

TEST(AxisTicks, AreRoundAndCover) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(0.3, 9.2, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(-3, 3, 3), (std::vector<double>{-4, -2, 0, 2, 4}));
  for (const double scale : {1e-6, 3.7, 1e9}) {
    const auto ticks = axis_ticks(1.1 * scale, 7.9 * scale, 6);
    EXPECT_LE(ticks.front(), 1.1 * scale);
    EXPECT_GE(ticks.back(), 7.9 * scale);
    EXPECT_LE(ticks.size(), 9U);
  }
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(ChartSvg, ManyPointsBecomeAtMostTwoAPixel) {
  ChartLine line;
  for (int i = 0; i < 100'000; ++i) line.points.emplace_back(i, i % 7);
  const std::string svg = chart_svg({"title", "x", "y", {line}});
  EXPECT_LT(count(svg, ","), 1500U);
  EXPECT_GT(count(svg, ","), 600U);
}

TEST(ChartSvg, DrawsWhatThereIs) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      chart_svg({"a < b", "step", "loss", {{"one", {{0, 1}, {1, nan}, {2, 3}}, ChartLine::Look::kMarked}, {"", {}}}});
  EXPECT_EQ(count(svg, "<circle"), 2U);
  EXPECT_EQ(count(svg, "nan"), 0U);
  EXPECT_EQ(count(svg, "a &lt; b"), 1U);
  EXPECT_EQ(count(svg, "class=\"key"), 1U);  // only lines with names are in the legend
  for (const auto& points : {std::vector<std::pair<double, double>>{}, {{5, 0}}, {{5, -2}}})
    EXPECT_EQ(count(chart_svg({"", "", "", {{"", points}}}), "nan"), 0U);
}

}  // namespace
}  // namespace stepc::train
