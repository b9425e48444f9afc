#include "cost/profile.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace stepc {
namespace {

using nlohmann::ordered_json;

constexpr double kMicro = 1e6;
constexpr double kGiga = 1e9;
constexpr size_t kWidest = 44;  // of a name in the table

// A time that is there, else a dash.
std::string time_or_none(double seconds, bool is_there) { return is_there ? time_text(seconds) : "-"; }

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds / kGiga : 0; }

struct Row {
  std::string name;
  size_t count = 0;
  Work work;
  double predicted = 0, seconds = 0;
};

template <class NameOf>
std::vector<Row> rows_by(const Profile& profile, const NameOf& name_of_row) {
  std::map<std::string, Row> rows;
  for (const ProfiledInstruction& one : profile.instructions) {
    const std::string name = name_of_row(one);
    Row& row = rows[name];
    row.name = name;
    ++row.count;
    row.work += one.work;
    row.predicted += one.predicted_seconds;
    row.seconds += one.seconds;
  }
  std::vector<Row> sorted;
  for (auto& [name, row] : rows) sorted.push_back(std::move(row));
  std::ranges::stable_sort(sorted, std::greater<>(), &Row::seconds);
  return sorted;
}

Row sum_of(const std::vector<Row>& rows, size_t begin, std::string name) {
  Row sum;
  sum.name = std::move(name);
  for (size_t r = begin; r < rows.size(); ++r) {
    sum.count += rows[r].count;
    sum.work += rows[r].work;
    sum.predicted += rows[r].predicted;
    sum.seconds += rows[r].seconds;
  }
  return sum;
}

// The end of a long name says more than its begin.
std::string fitted(const std::string& name) {
  return name.size() <= kWidest ? name : str("...{}", name.substr(name.size() - (kWidest - 3)));
}

// A small rate keeps two digits: a short call's is far below 1, and 0.0 would say that it does nothing.
std::string rate_text(double rate) { return rate == 0 || rate >= 1 ? str("{:.1f}", rate) : str("{:.2g}", rate); }

std::string line(const Row& row, const Profile& profile) {
  return str("  {:<{}} {:>6} {:>11} {:>6.1f} {:>11} {:>9} {:>7}\n", fitted(row.name), kWidest, row.count,
             time_text(row.seconds), profile.seconds > 0 ? 100 * row.seconds / profile.seconds : 0,
             time_or_none(row.predicted, profile.is_predicted), rate_text(rate(row.work.all_flops(), row.seconds)),
             rate_text(rate(row.work.bytes, row.seconds)));
}

std::string table(std::string_view title, std::vector<Row> rows, size_t most, const Profile& profile) {
  std::string out = str("{:<{}} {:>6} {:>11} {:>6} {:>11} {:>9} {:>7}\n", title, kWidest + 2, "count", "measured", "%",
                        "predicted", "GFLOP/s", "GB/s");
  if (rows.size() > most) {
    const Row rest = sum_of(rows, most, str("{} others", rows.size() - most));
    rows.resize(most);
    rows.push_back(rest);
  }
  for (const Row& row : rows) out += line(row, profile);
  return out;
}

std::string class_row(const ProfiledInstruction& one) { return one.work_class; }

// The classes that are further off than a prediction may be, and take time enough to matter.
std::string badly_predicted(const std::vector<Row>& classes, double step_seconds) {
  constexpr double kOff = 0.25, kMatters = 0.02;
  std::string names;
  for (const Row& row : classes) {
    if (row.seconds < kMatters * step_seconds && row.predicted < kMatters * step_seconds) continue;
    if (row.seconds <= 0 || std::abs(row.predicted / row.seconds - 1) <= kOff) continue;
    names += str("{}{} ({:+.0f} %)", names.empty() ? "" : ", ", row.name, 100 * (row.predicted / row.seconds - 1));
  }
  return names.empty() ? names : "more than 25 % off: " + names + "\n";
}

std::string kind_row(const ProfiledInstruction& one) { return str("{} ({})", one.name, one.kernel); }
std::string module_row(const ProfiledInstruction& one) {
  return one.module.empty() ? str("(outside of modules), {}", name_of(one.phase)) : one.module;
}

std::string rates_text(const Profile& profile) {
  const Target& target = profile.target;
  if (!profile.is_predicted) return str("nothing: the rates of {} are not known", profile.device);
  if (target.gpu) return str("data sheets and published rates of {}", target.gpu->name);
  return str(
      "{:.1f} GFLOP/s, {:.1f} on bf16, {:.1f} GB/s, {}", target.flops_per_second / kGiga,
      target.narrow_flops_per_second / kGiga, target.bytes_per_second / kGiga,
      profile.is_calibrated ? "measured on this machine" : "defaults: `stepc calibrate` measures this machine's");
}

ordered_json track_name(int track, std::string_view name) {
  return {{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", name}}}};
}

ordered_json event_of(const ProfiledInstruction& one, int track, double begin, double seconds, double predicted) {
  return {{"name", one.name},
          {"cat", name_of(one.phase)},
          {"ph", "X"},
          {"ts", begin * kMicro},
          {"dur", seconds * kMicro},
          {"pid", 1},
          {"tid", track},
          {"args",
           {{"instruction", one.index},
            {"kernel", one.kernel},
            {"module", one.module},
            {"phase", name_of(one.phase)},
            {"flops", one.work.all_flops()},
            {"bytes", one.work.bytes},
            {"measured_us", one.seconds * kMicro},
            {"predicted_us", predicted * kMicro},
            {"GFLOP/s", rate(one.work.all_flops(), one.seconds)},
            {"GB/s", rate(one.work.bytes, one.seconds)}}}};
}

}  // namespace

std::string time_text(double seconds) {
  if (seconds < 1e-3) return str("{:.1f} us", seconds * kMicro);
  return seconds < 1 ? str("{:.2f} ms", seconds * 1e3) : str("{:.3f} s", seconds);
}

void Profile::append(const Profile& next) {
  const size_t before = instructions.size();
  for (ProfiledInstruction instruction : next.instructions) {
    instruction.index += before;
    instruction.begin_seconds += seconds;
    instruction.call_begin_seconds += seconds;
    instructions.push_back(std::move(instruction));
  }
  call_seconds = seconds + next.call_seconds;
  seconds += next.seconds;
}

std::string to_text(const Profile& profile, size_t rows) {
  const std::vector<Row> kinds = rows_by(profile, kind_row);
  const Row sum = sum_of(kinds, 0, "");
  std::string out =
      str("step ({} mode{}) {}: {} in {} instructions, {} between them; predicted {}\n", profile.mode,
          profile.device.empty() ? "" : " on " + profile.device, time_text(profile.seconds), time_text(sum.seconds),
          sum.count, time_text(profile.seconds - sum.seconds), time_or_none(sum.predicted, profile.is_predicted));
  if (!profile.device.empty())
    out += str("times are the device's, each instruction launched by itself; the host made its calls in {}\n",
               time_text(profile.call_seconds));
  out += str("predicted from {}\n", rates_text(profile));
  const std::vector<Row> classes = rows_by(profile, class_row);
  out += table("by class of work", classes, classes.size(), profile);
  if (profile.is_predicted) out += badly_predicted(classes, profile.seconds);
  out += table("by kind", kinds, rows, profile);
  out += table("by module", rows_by(profile, module_row), rows, profile);
  return out;
}

std::string to_trace_events(const Profile& profile) {
  constexpr int kMeasured = 1, kPredicted = 2, kCalls = 3;
  ordered_json events = ordered_json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "training step"}}}});
  const bool is_on_device = !profile.device.empty();
  events.push_back(track_name(kMeasured, is_on_device ? "measured on the device" : "measured"));
  if (profile.is_predicted) events.push_back(track_name(kPredicted, "predicted"));
  if (is_on_device) events.push_back(track_name(kCalls, "the host's calls"));
  double predicted_end = 0;
  for (const ProfiledInstruction& one : profile.instructions) {
    const double predicted = one.predicted_seconds;
    events.push_back(event_of(one, kMeasured, one.begin_seconds, one.seconds, predicted));
    if (profile.is_predicted) events.push_back(event_of(one, kPredicted, predicted_end, predicted, predicted));
    if (is_on_device) events.push_back(event_of(one, kCalls, one.call_begin_seconds, one.call_seconds, predicted));
    predicted_end += predicted;
  }
  ordered_json about = {{"mode", profile.mode},
                        {"step_us", profile.seconds * kMicro},
                        {"predicted_us", predicted_end * kMicro},
                        {"rates", rates_text(profile)}};
  if (is_on_device) about["device"] = profile.device;
  const ordered_json whole = {
      {"displayTimeUnit", "ms"}, {"otherData", std::move(about)}, {"traceEvents", std::move(events)}};
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace stepc
