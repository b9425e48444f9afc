// metrics.jsonl: one JSON object a line, one line a logged step or evaluation, in the order of steps, and beside it the
// same numbers for TensorBoard. A line is written whole; a resumed run first drops the lines after its checkpoint, so
// no step appears twice.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "train/report/events.h"

namespace stepc::train {

// Where TensorBoard looks, in the directory of metrics.jsonl.
inline constexpr const char* kEventsName = "events.out.tfevents.stepc";

class Metrics {
 public:
  // Opens the file; lines whose "step" is above `after_step`, and a torn last line, are dropped.
  Metrics(const std::string& path, int64_t after_step);

  // Adds "time", seconds since 1970. A line of a step that the file already held when it was opened is not written
  // again.
  void write(nlohmann::ordered_json line);
  // The lowest value of `key` in the lines after step 0.
  [[nodiscard]] std::optional<double> least(const std::string& key) const;
  // The value of `key` in the line of `step` that has it.
  [[nodiscard]] std::optional<double> find(int64_t step, const std::string& key) const;

 private:
  std::string path_;
  int64_t after_step_;
  EventFile events_;  // rewritten from the lines that are kept
  std::ofstream file_;
};

}  // namespace stepc::train
