// The picture of a MemoryReport. Steps are merged into at most kColumns columns, each as high as its highest step, so
// no peak is lost.
#include <algorithm>
#include <bit>

#include "base/text.h"
#include "memory/report.h"

namespace stepc {
namespace {

constexpr double kWidth = 960, kHeight = 420;                        // of the drawing
constexpr double kLeft = 90, kTop = 48, kRight = 170, kBottom = 48;  // around it
constexpr size_t kColumns = 320;
constexpr uint64_t kInvisible = 1000;  // a class below this part of the peak is not in the legend
// Distinct for the colour-blind too (after Okabe and Ito), what stays below in grey and blue.
constexpr std::array<std::string_view, kByteClasses> kColours = {"#4d6a8a", "#8da9c4", "#b9b9b9", "#d8c9a3", "#dddddd",
                                                                 "#d55e00", "#009e73", "#e69f00", "#cc79a7"};

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

using Column = std::array<uint64_t, kByteClasses>;
uint64_t sum_of(const Column& column) {
  uint64_t sum = 0;
  for (uint64_t bytes : column) sum += bytes;
  return sum;
}

std::vector<Column> columns_of(const MemoryReport& report) {
  const size_t steps = report.timeline.size();
  std::vector<Column> columns(std::min(steps, kColumns));
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto begin = report.timeline.begin() + static_cast<std::ptrdiff_t>(i * steps / columns.size());
    const auto end = report.timeline.begin() + static_cast<std::ptrdiff_t>((i + 1) * steps / columns.size());
    columns[i] = *std::max_element(begin, end, [](const Column& a, const Column& b) { return sum_of(a) < sum_of(b); });
  }
  return columns;
}

}  // namespace

std::string timeline_svg(const MemoryReport& report, std::string_view title) {
  const std::vector<Column> columns = columns_of(report);
  const double top = std::max<double>(static_cast<double>(report.peak_bytes), 1) * 1.04;
  const auto x_at = [&](size_t column) {
    return kLeft + kWidth * static_cast<double>(column) / static_cast<double>(std::max<size_t>(columns.size(), 1));
  };
  const auto y_at = [&](double bytes) { return kTop + kHeight * (1 - bytes / top); };
  std::string out =
      str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
          "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
          kLeft + kWidth + kRight, kTop + kHeight + kBottom);
  out += str("<text x=\"{}\" y=\"24\" font-size=\"16\">{}</text>\n", kLeft, escaped(title));
  const uint64_t between = std::max<uint64_t>(std::bit_floor(report.peak_bytes / 4), 1);  // lines of the grid
  for (uint64_t bytes = 0; static_cast<double>(bytes) <= top; bytes += between) {
    const double y = y_at(static_cast<double>(bytes));
    out += str("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\"/>\n", kLeft,
               kLeft + kWidth, y);
    out += str("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + 4, human_bytes(bytes));
  }
  std::vector<double> below(columns.size(), 0);
  std::vector<size_t> shown;
  for (size_t c = 0; c < kByteClasses; ++c) {
    uint64_t most = 0;
    for (const Column& column : columns) most = std::max(most, column[c]);
    if (most == 0) continue;
    if (most >= report.peak_bytes / kInvisible) shown.push_back(c);
    std::string upper, lower;  // along the top from left to right, back along the bottom
    for (size_t i = 0; i < columns.size(); ++i) {
      const double above = below[i] + static_cast<double>(columns[i][c]);
      upper += str("L{:.1f} {:.1f}H{:.1f}", x_at(i), y_at(above), x_at(i + 1));
      lower.insert(0, str("L{:.1f} {:.1f}H{:.1f}", x_at(i + 1), y_at(below[i]), x_at(i)));
      below[i] = above;
    }
    upper[0] = 'M';
    out += str("<path d=\"{}{}Z\" fill=\"{}\"><title>{}</title></path>\n", upper, lower, kColours[c],
               name_of(static_cast<ByteClass>(c)));
  }
  double legend = kTop + 12;  // as they lie, the highest first
  for (size_t i = shown.size(); i-- > 0; legend += 22) {
    out += str("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", kLeft + kWidth + 16, legend - 10,
               kColours[shown[i]]);
    out += str("<text x=\"{}\" y=\"{}\">{}</text>\n", kLeft + kWidth + 34, legend,
               name_of(static_cast<ByteClass>(shown[i])));
  }
  const double peak_x = kLeft + kWidth * (static_cast<double>(report.peak_step) + 0.5) /
                                    static_cast<double>(std::max<size_t>(report.timeline.size(), 1));
  const double peak_y = y_at(static_cast<double>(report.peak_bytes));
  out += str("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"none\" stroke=\"black\"/>\n", peak_x, peak_y);
  const bool right = peak_x > kLeft + kWidth / 2;
  out += str("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}: {}</text>\n", peak_x + (right ? -8 : 8), kTop - 6,
             right ? "end" : "start", human_bytes(report.peak_bytes), escaped(report.peak_node));
  out += str("<text x=\"{}\" y=\"{}\">instructions 1 to {}</text>\n</svg>\n", kLeft, kTop + kHeight + 24,
             report.timeline.size());
  return out;
}

}  // namespace stepc
