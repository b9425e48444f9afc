#include "train/report/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "train/report/html_page.h"
#include "train/report/html_text.h"
#include "train/report/line_chart.h"

namespace stepc::train {
namespace {

using Points = std::vector<std::pair<double, double>>;

struct Curves {
  Points loss, held_out, lr, grad_norm, rate;
};

Curves read_curves(const std::filesystem::path& metrics) {
  Curves curves;
  std::ifstream file(metrics);
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    const double step = line.value("step", 0.0);
    const auto add = [&](const char* key, Points& points) {
      if (line.contains(key) && line[key].is_number()) points.emplace_back(step, line[key].get<double>());
    };
    add("loss", curves.loss);
    add("held_out_loss", curves.held_out);
    add("lr", curves.lr);
    add("grad_norm", curves.grad_norm);
    add("tokens_per_second", curves.rate);
  }
  return curves;
}

// A running mean that forgets: about the last fiftieth of the points.
Points smoothed(const Points& points) {
  constexpr double kParts = 50;
  const double keep = 1 - 1 / std::max(1.0, static_cast<double>(points.size()) / kParts);
  Points smooth;
  double sum = 0, weight = 0;
  for (const auto& [x, y] : points) {
    sum = keep * sum + y;
    weight = keep * weight + 1;
    smooth.emplace_back(x, sum / weight);
  }
  return smooth;
}

std::string charts_html(const Curves& curves) {
  using Look = ChartLine::Look;
  std::string html = "<div class=\"charts\">\n";
  html += chart_svg({"Loss",
                     "step",
                     "nats per token",
                     {{"training", curves.loss, Look::kFaint},
                      {"training, smoothed", smoothed(curves.loss), Look::kLine},
                      {"held out", curves.held_out, Look::kMarked}}});
  const auto single = [](const char* title, const char* unit, const Points& points, bool from_zero) {
    return chart_svg({title, "step", unit, {{"", {}, Look::kLine}, {"", points, Look::kLine}}, from_zero});
  };
  html += single("Learning rate", "learning rate", curves.lr, true);
  html += single("Gradient norm, before clipping", "norm", curves.grad_norm, true);
  html += single("Throughput", "tokens a second", curves.rate, true);
  return html + "</div>\n";
}

std::string fact(const std::string& value, const std::string& name) {
  return str("<div class=\"fact\"><b>{}</b><span>{}</span></div>\n", html_text(value), html_text(name));
}

std::string facts_html(const Report& report) {
  const double step = report.step_seconds;
  std::string html = "<div class=\"facts\">\n";
  if (report.held_out_after) {
    const std::string before = report.held_out_before ? str(", from {:.4f}", *report.held_out_before) : std::string();
    html += fact(str("{:.4f}", *report.held_out_after), "held-out loss, nats per byte" + before);
  }
  html += fact(str("{}", report.steps), str("steps of {} tokens", report.tokens_per_step));
  if (step > 0) {
    html += fact(str("{:.3f} s", step), "a step, median");
    html +=
        fact(str("{}", human_count(std::round(static_cast<double>(report.tokens_per_step) / step))), "tokens a second");
    html += fact(str("{:.0f} %", 100 * std::min(1.0, report.least_step_seconds / step)),
                 report.rate_is_of_a_step ? "of the rate of the fastest step" : "of the machine's matmul rate");
  }
  html += fact(human_seconds(report.time.total), "this process, in all");
  return html + "</div>\n";
}

struct Part {
  std::string name;
  double seconds;
  std::string why;
};

std::vector<Part> time_parts(const Report& report) {
  const Stats& stats = report.stats;
  const TimeSpent& time = report.time;
  const double planning = stats.capture_seconds + stats.planning_seconds;
  const double other_steps = std::max(0.0, time.steps - stats.execute_seconds - stats.verify_seconds - planning);
  const double known = time.set_up + time.batches + time.steps + time.evaluation + time.saving;
  return {
      {"replayed steps", stats.execute_seconds, str("replays: {}", stats.replays)},
      {"other steps", other_steps, str("{} recorded, {} eager; reading results", stats.recordings, stats.eager_calls)},
      {"capture and planning", planning, str("plans made: {}", stats.plans)},
      {"verification", stats.verify_seconds, str("replays compared: {}", stats.verifications)},
      {"evaluation", time.evaluation, "held-out loss"},
      {"batches", time.batches, "token shards to tensors"},
      {"waiting for saves", time.saving, "staging copies, and the last save"},
      {"set-up and the rest", time.set_up + std::max(0.0, time.total - known), "model, data, report"}};
}

std::string time_html(const Report& report) {
  const std::vector<Part> parts = time_parts(report);
  double total = 0;
  for (const Part& part : parts) total += part.seconds;
  total = std::max(total, 1e-9);
  std::string bar, rows;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double percent = 100 * parts[i].seconds / total;
    bar += str("<i class=\"p{}\" style=\"width:{:.2f}%\" title=\"{}\"></i>", i, percent, html_text(parts[i].name));
    rows +=
        str("<tr><td><span class=\"dot p{}\"></span>{}</td><td>{:.2f} s</td><td>{:.1f} %</td><td "
            "class=\"why\">{}</td></tr>\n",
            i, html_text(parts[i].name), parts[i].seconds, percent, html_text(parts[i].why));
  }
  return str(
      "<h2>Where the time went</h2>\n<div class=\"bar\">{}</div>\n"
      "<table><tr><th>part</th><th>time</th><th>share</th><th></th></tr>\n{}</table>\n",
      bar, rows);
}

// An SVG file's text as a part of a page, where it needs no name space: the page names no address at all.
std::string inline_svg(std::string svg) {
  constexpr std::string_view kNameSpace = " xmlns=\"http://www.w3.org/2000/svg\"";
  if (const size_t at = svg.find(kNameSpace); at != std::string::npos) svg.erase(at, kNameSpace.size());
  return svg;
}

std::string planned_html(const Report& report) {
  const Stats& stats = report.stats;
  const auto bytes = [](uint64_t value) { return value == 0 ? std::string("-") : human_bytes(value); };
  const auto seconds = [](double value) { return value > 0 ? str("{:.4f} s", value) : std::string("-"); };
  const auto row = [](const std::string& name, const std::string& planned, const std::string& measured,
                      const std::string& why) {
    return str("<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"why\">{}</td></tr>\n", html_text(name), planned,
               measured, html_text(why));
  };
  std::string rows;
  rows += row("a step", seconds(report.least_step_seconds), seconds(report.step_seconds),
              report.rate_is_of_a_step ? "planned: the fastest step, above the rate of a large matmul"
                                       : "planned: every FLOP at the rate of a large matmul");
  if (report.prediction)
    rows += row("a step, predicted", seconds(report.prediction->seconds), seconds(report.step_seconds),
                std::string(source_of(*report.prediction)));
  const bool planned = stats.plans > 0;
  if (planned) {
    rows += row("step memory, peak", bytes(stats.planned_peak_bytes), bytes(stats.measured_peak_bytes),
                str("eager reached {}", bytes(stats.eager_peak_bytes)));
    rows += row("arena", bytes(stats.live_lower_bound_bytes), bytes(stats.arena_bytes),
                str("planned: the largest sum of live bytes; laid out by {}", stats.layout_algorithm));
    rows += row("verification, once", "-", bytes(stats.verification_bytes), "held while a replay was compared");
  }
  rows += row("model and optimizer", bytes(stats.state_bytes), "-", "parameters, buffers, moments, master weights");
  rows += row("staging for saves", bytes(report.saves.staging_bytes), "-",
              "a copy of the state, from before the first step to the end");
  rows +=
      row("the whole process", "-", bytes(report.peak_process_bytes), "resident at most: libraries and data included");
  const std::string note =
      planned ? "" : "<p>An eager step takes its memory from the allocator: none is planned.</p>\n";
  const std::string weighed =
      stats.auto_budget.empty() ? "" : str("<p>memory.budget auto: {}</p>\n", html_text(stats.auto_budget));
  const std::string picture = report.memory_picture.empty()
                                  ? ""
                                  : str("<div class=\"picture\">{}</div>\n<pre>{}</pre>\n",
                                        inline_svg(report.memory_picture), html_text(report.memory_table));
  return str(
      "<h2>Time and memory, planned and measured</h2>\n{}<table><tr><th></th><th>planned</th><th>measured</th>"
      "<th></th></tr>\n{}</table>\n{}{}",
      note, rows, weighed, picture);
}

std::string saves_html(const SavesMade& saves) {
  if (saves.count == 0) return {};
  return str(
      "<h2>Checkpoints</h2>\n<p>{} saved. The last is {}: training waited {:.1f} ms for the copy of its state; the "
      "files were written in {:.2f} s beside the training.</p>\n",
      saves.count, human_bytes(saves.bytes), 1e3 * saves.staging_seconds, saves.writing_seconds);
}

}  // namespace

std::string report_html(const Report& report, const std::filesystem::path& metrics) {
  std::string html = page_head(report.title, chart_style());
  html += str("<h1>{}</h1>\n<p>{}</p>\n<p>{}; mode {}</p>\n", html_text(report.title), html_text(report.model),
              html_text(report.data), html_text(report.mode));
  html += facts_html(report) + charts_html(read_curves(metrics)) + time_html(report) + planned_html(report) +
          to_html(report.ranks) + saves_html(report.saves);
  if (!report.choice.empty())
    html += str("<h2>How the ranks were spread, and why</h2>\n<pre>{}</pre>\n", html_text(report.choice));
  html += str("<h2>Configuration</h2>\n<pre>{}</pre>\n</body></html>\n", html_text(report.config));
  return html;
}

}  // namespace stepc::train
