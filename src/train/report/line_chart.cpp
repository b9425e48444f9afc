#include "train/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "train/report/html_text.h"

namespace stepc::train {
namespace {

constexpr double kWidth = 760, kHeight = 300;
constexpr double kLeft = 78, kRight = 16, kTop = 16, kBottom = 46;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

struct Axes {
  Range x, y;
  std::vector<double> x_ticks, y_ticks;
  [[nodiscard]] double at_x(double value) const {
    return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double at_y(double value) const {
    return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom);
  }
};

// "0.0015", "1.5e-06", "5.3 k": as short as the step between ticks allows, in the unit of the largest tick.
std::string tick_text(double value, const std::vector<double>& ticks) {
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  const double largest = std::abs(ticks.back());
  constexpr double kThousand = 1e3, kSmall = 1e-4;
  if (value == 0) return "0";
  if (std::abs(value) < kSmall) return str("{:.2g}", value);
  if (largest >= 10 * kThousand) {
    constexpr double kMillion = 1e6;
    return largest < 10 * kMillion ? str("{:g} k", value / kThousand) : str("{:g} M", value / kMillion);
  }
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 8);
  return str("{:.{}f}", value, digits);
}

Axes axes_of(const Chart& chart) {
  Axes axes;
  for (const ChartLine& line : chart.lines) {
    for (const auto& [x, y] : line.points) {
      if (!std::isfinite(y)) continue;
      axes.x.add(x);
      axes.y.add(y);
    }
  }
  if (!(axes.x.low <= axes.x.high)) axes = {{0, 1}, {0, 1}, {}, {}};
  axes.x.add(0);
  if (chart.from_zero) axes.y.add(0);
  if (axes.x.low == axes.x.high) axes.x.high += 1;
  if (axes.y.low == axes.y.high) axes.y.high += axes.y.high == 0 ? 1 : std::abs(axes.y.high) / 2;
  constexpr int kXTicks = 8, kYTicks = 5;
  axes.y_ticks = axis_ticks(axes.y.low, axes.y.high, kYTicks);
  axes.y = {axes.y_ticks.front(), axes.y_ticks.back()};
  for (const double tick : axis_ticks(axes.x.low, axes.x.high, kXTicks))
    if (tick >= axes.x.low && tick <= axes.x.high) axes.x_ticks.push_back(tick);
  return axes;
}

// At most two points a pixel: the least and the most of each column, in their order.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points, const Axes& axes) {
  std::vector<std::pair<double, double>> kept;
  for (size_t begin = 0; begin < points.size();) {
    const auto column = std::floor(axes.at_x(points[begin].first));
    size_t least = points.size(), most = points.size(), end = begin;
    for (; end < points.size() && std::floor(axes.at_x(points[end].first)) == column; ++end) {
      if (!std::isfinite(points[end].second)) continue;
      if (least == points.size() || points[end].second < points[least].second) least = end;
      if (most == points.size() || points[end].second > points[most].second) most = end;
    }
    if (least < points.size()) kept.push_back(points[std::min(least, most)]);
    if (least != most) kept.push_back(points[std::max(least, most)]);
    begin = end;
  }
  return kept;
}

std::string line_svg(const ChartLine& line, size_t colour, const Axes& axes) {
  std::string points, marks;
  for (const auto& [x, y] : thinned(line.points, axes)) {
    points += str("{:.1f},{:.1f} ", axes.at_x(x), axes.at_y(y));
    if (line.look == ChartLine::Look::kMarked)
      marks += str(
          "<circle class=\"mark c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}: {:.4g} at {:g}</title></circle>",
          colour, axes.at_x(x), axes.at_y(y), html_text(line.name), y, x);
  }
  const char* faint = line.look == ChartLine::Look::kFaint ? " faint" : "";
  return str("<polyline class=\"line c{}{}\" points=\"{}\"/>{}\n", colour, faint, points, marks);
}

std::string legend_html(const Chart& chart) {
  std::string entries;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    if (chart.lines[i].name.empty()) continue;
    entries += str("<span class=\"key k{}{}\">{}</span>", i,
                   chart.lines[i].look == ChartLine::Look::kFaint ? " faint" : "", html_text(chart.lines[i].name));
  }
  return str("<span class=\"legend\">{}</span>", entries);
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, int count) {
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double nice : {5.0, 2.0, 1.0})
    if (nice * power >= rough * (1 - 1e-9)) step = nice * power;
  std::vector<double> ticks;
  const double last = std::ceil(high / step - 1e-9);
  for (double at = std::floor(low / step + 1e-9); at <= last; ++at) ticks.push_back(at * step);
  return ticks;
}

std::string chart_svg(const Chart& chart) {
  const Axes axes = axes_of(chart);
  std::string svg = str("<figure><figcaption>{}{}</figcaption>\n<svg viewBox=\"0 0 {:g} {:g}\" role=\"img\">\n",
                        html_text(chart.title), legend_html(chart), kWidth, kHeight);
  for (const double tick : axes.y_ticks) {
    svg += str("<line class=\"grid\" x1=\"{:g}\" x2=\"{:g}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, kWidth - kRight,
               axes.at_y(tick), axes.at_y(tick));
    svg += str("<text class=\"tick end\" x=\"{:g}\" y=\"{:.1f}\">{}</text>\n", kLeft - 8, axes.at_y(tick) + 4,
               tick_text(tick, axes.y_ticks));
  }
  for (const double tick : axes.x_ticks)
    svg += str("<text class=\"tick middle\" x=\"{:.1f}\" y=\"{:g}\">{}</text>\n", axes.at_x(tick),
               kHeight - kBottom + 18, tick_text(tick, axes.x_ticks));
  svg += str("<line class=\"axis\" x1=\"{:g}\" x2=\"{:g}\" y1=\"{:g}\" y2=\"{:g}\"/>\n", kLeft, kWidth - kRight,
             kHeight - kBottom, kHeight - kBottom);
  svg += str("<text class=\"label middle\" x=\"{:g}\" y=\"{:g}\">{}</text>\n", (kLeft + kWidth - kRight) / 2,
             kHeight - 6, html_text(chart.x_label));
  svg += str("<text class=\"label middle\" transform=\"translate(14 {:g}) rotate(-90)\">{}</text>\n",
             (kTop + kHeight - kBottom) / 2, html_text(chart.y_label));
  for (size_t i = 0; i < chart.lines.size(); ++i) svg += line_svg(chart.lines[i], i, axes);
  return svg + "</svg></figure>\n";
}

std::string chart_style() {
  return R"(
:root { --c0: #9bb8d3; --c1: #1f6fb2; --c2: #c8501e; }
@media (prefers-color-scheme: dark) { :root { --c0: #3f5f7d; --c1: #6cb4f0; --c2: #f2925f; } }
figure { margin: 0; }
figcaption { font-weight: 600; margin: 0 0 .3em; display: flex; justify-content: space-between; flex-wrap: wrap; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 13px system-ui, sans-serif; fill: var(--soft); }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; } svg .tick { font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .line.faint { stroke-width: 1; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.mark { stroke: var(--page); stroke-width: 1.5; }
.mark.c0 { fill: var(--c0); } .mark.c1 { fill: var(--c1); } .mark.c2 { fill: var(--c2); }
.legend { font-weight: 400; color: var(--soft); } .key { margin-left: 1.2em; }
.key::before { content: ""; display: inline-block; width: 1.4em; height: 3px; margin-right: .45em; vertical-align: middle; }
.k0::before { background: var(--c0); } .k1::before { background: var(--c1); } .k2::before { background: var(--c2); }
)";
}

}  // namespace stepc::train
