// A line chart as inline SVG: axes with units, a legend, colours from the page's style sheet (chart_style()), so that
// it reads on a light and on a dark page. No script.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace stepc::train {

struct ChartLine {
  std::string name;                               // empty: not in the legend
  std::vector<std::pair<double, double>> points;  // by rising x; not finite: left out
  enum class Look { kLine, kFaint, kMarked } look = Look::kLine;
};

struct Chart {
  std::string title;
  std::string x_label, y_label;  // with units; the x axis begins at 0
  std::vector<ChartLine> lines;  // the n-th has the n-th colour
  bool from_zero = false;        // the y axis begins at 0, not at the least value
};

std::string chart_svg(const Chart& chart);
// What the page's <style> must hold.
std::string chart_style();

// Round numbers that cover [low, high], about `count` of them: 0, 0.5, 1, 1.5.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace stepc::train
