#include "train/report/metrics.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"

namespace stepc::train {
namespace {

// The lines to keep: whole JSON objects of steps up to `after_step`.
std::string kept_lines(const std::string& path, int64_t after_step) {
  std::error_code ignored;
  USER_CHECK(!std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored),
             "{}: not a regular file", path);
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("step", after_step + 1) > after_step) continue;
    kept += line + "\n";
  }
  return kept;
}

// Writes every number of the line, except its step and time, under the name of its key.
void write_event(EventFile& events, const nlohmann::ordered_json& line) {
  Scalars scalars;
  for (const auto& [key, value] : line.items())
    if (value.is_number() && key != "step" && key != "time") scalars.emplace_back(key, value.get<double>());
  events.write(line.at("step").get<int64_t>(), line.value("time", 0.0), scalars);
}

}  // namespace

Metrics::Metrics(const std::string& path, int64_t after_step)
    : path_(path), after_step_(after_step), events_(std::filesystem::path(path).replace_filename(kEventsName)) {
  const std::string kept = kept_lines(path, after_step);
  for (const std::string& line : split(kept, '\n'))
    if (!line.empty()) write_event(events_, nlohmann::ordered_json::parse(line));
  write_file_synced(path, kept);
  file_.open(path, std::ios::app);
  USER_CHECK(file_.good(), "{}: cannot be written", path);
}

void Metrics::write(nlohmann::ordered_json line) {
  if (line.at("step").get<int64_t>() <= after_step_) return;
  constexpr double kMilli = 1e-3;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  line["time"] = kMilli * static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  write_event(events_, line);
  file_ << line.dump() << "\n" << std::flush;
  if (!file_.good()) throw std::runtime_error(str("{}: cannot be written: is the disk full?", path_));
}

std::optional<double> Metrics::find(int64_t step, const std::string& key) const {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("step") == step && json.contains(key)) return json.at(key).get<double>();
  }
  return std::nullopt;
}

std::optional<double> Metrics::least(const std::string& key) const {
  std::optional<double> least;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.at("step") == 0 || !json.contains(key) || !json.at(key).is_number()) continue;
    const double value = json.at(key).get<double>();
    least = std::min(least.value_or(value), value);
  }
  return least;
}

}  // namespace stepc::train
