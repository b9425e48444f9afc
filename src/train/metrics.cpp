#include "train/metrics.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"

namespace stepc::train {
namespace {

// The lines to keep: whole JSON objects of steps up to `after_step`.
std::string kept_lines(const std::string& path, int64_t after_step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("step", int64_t{0}) > after_step) continue;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace

Metrics::Metrics(const std::string& path, int64_t after_step) : path_(path), after_step_(after_step) {
  write_file_synced(path, kept_lines(path, after_step));
  file_.open(path, std::ios::app);
  USER_CHECK(file_.good(), "{}: cannot be written", path);
}

void Metrics::write(const nlohmann::ordered_json& line) {
  if (line.at("step").get<int64_t>() <= after_step_) return;
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

}  // namespace stepc::train
