// metrics.jsonl: one JSON object a line, one line a logged step or evaluation, in the order of steps. A line is written
// whole; a resumed run first drops the lines after its checkpoint, so no step appears twice.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace stepc::train {

class Metrics {
 public:
  // Opens the file; lines whose "step" is above `after_step`, and a torn last line, are dropped.
  Metrics(const std::string& path, int64_t after_step);

  // A line of a step that the file already held when it was opened is not written again.
  void write(const nlohmann::ordered_json& line);
  // The value of `key` in the line of `step` that has it.
  [[nodiscard]] std::optional<double> find(int64_t step, const std::string& key) const;

 private:
  std::string path_;
  int64_t after_step_;
  std::ofstream file_;
};

}  // namespace stepc::train
