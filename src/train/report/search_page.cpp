#include "train/report/search_page.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cost/profile.h"
#include "train/report/html_page.h"
#include "train/report/html_text.h"

namespace stepc::train {
namespace {

constexpr std::string_view kSearchStyle = R"(
body { max-width: 72rem; } td.way { text-align: left; min-width: 12rem; } td.drawn { width: 26%; }
td .bar { margin: .2rem 0 0; height: .8rem; } .legend { font-size: .9rem; } .legend .dot { margin-left: 1.2em; }
)";
constexpr std::string_view kCompute = "p0", kExposed = "p2", kWaiting = "p4", kState = "p3", kWithin = "p6";

std::string fact(const std::string& value, std::string_view what) {
  return str("<div class=\"fact\"><b>{}</b><span>{}</span></div>\n", html_text(value), what);
}

// A bar of parts, in which `whole` has the full length.
std::string bar(const std::vector<std::pair<std::string_view, double>>& parts, double whole) {
  std::string html = "<div class=\"bar\">";
  for (const auto& [colour, part] : parts)
    html += str("<i class=\"{}\" style=\"width:{:.2f}%\"></i>", colour, 100 * std::max(0.0, part) / whole);
  return html + "</div>";
}

std::string row(size_t place, const Outcome& one, const SearchSubject& subject, double longest, double memory) {
  const double tokens = static_cast<double>(subject.rows * subject.tokens);
  return str(
      "<tr><td>{}</td><td class=\"way\">{}{}</td><td class=\"drawn\">{}{}</td><td>{}</td><td "
      "class=\"drawn\">{}{}</td></tr>\n",
      place, html_text(to_text(one.candidate)), one.recomputes ? ", recomputes" : "", time_text(one.seconds),
      bar({{kCompute, one.seconds - one.exposed_seconds - one.waiting_seconds},
           {kExposed, one.exposed_seconds},
           {kWaiting, one.waiting_seconds}},
          longest),
      human_count(tokens / one.seconds), human_bytes(one.bytes()),
      bar({{kState, static_cast<double>(one.state_bytes)}, {kWithin, static_cast<double>(one.step_bytes)}}, memory));
}

}  // namespace

std::string search_page(const SearchResult& result, const SearchSubject& subject, const Cluster& cluster, size_t top) {
  std::string html = page_head(subject.title + " on " + cluster.name, kSearchStyle);
  html += str("<h1>{}</h1>\n<p>{} rows of {} tokens a step, on {}</p>\n", html_text(subject.title), subject.rows,
              subject.tokens, html_text(title_of(cluster)));
  const Outcome* best = result.best();
  const double memory = static_cast<double>(cluster.memory_bytes());
  if (best != nullptr) {
    html += "<div class=\"facts\">\n" + fact(to_text(best->candidate), "the best way") +
            fact(time_text(best->seconds), "a step, as predicted") +
            fact(human_count(static_cast<double>(subject.rows * subject.tokens) / best->seconds), "tokens a second") +
            fact(str("{} of {}", human_bytes(best->bytes()), human_bytes(static_cast<uint64_t>(memory))),
                 "memory of a device") +
            "</div>\n" + str("<p>{}</p>\n", html_text(helps_most(result, cluster)));
    const size_t shown = std::min(top, result.count(Verdict::kPlanned));
    double longest = 0;
    for (size_t i = 0; i < shown; ++i) longest = std::max(longest, result.outcomes[i].seconds);
    html += str(
        "<h2>The best {}</h2>\n<p class=\"legend\">time:<i class=\"dot {}\"></i>computation<i class=\"dot {}\"></i>"
        "exchanges that nothing hides<i class=\"dot {}\"></i>waiting for other stages; memory:<i class=\"dot "
        "{}\"></i>parameters, gradients and optimizer"
        "<i class=\"dot {}\"></i>the step, of what a device has</p>\n<table><tr><th></th><th style=\"text-align:left\">"
        "way</th><th>a step</th><th>tokens/s</th><th>memory of a device</th></tr>\n",
        shown, kCompute, kExposed, kWaiting, kState, kWithin);
    for (size_t i = 0; i < shown; ++i) html += row(i + 1, result.outcomes[i], subject, longest, memory);
    html += "</table>\n";
  }
  html += str("<h2>In words</h2>\n<pre>{}</pre>\n", html_text(to_text(result, subject, cluster, top)));
  return html + "</body></html>\n";
}

}  // namespace stepc::train
