// While it lives, the lines of stepc's logger go through a Progress, so that they and the progress line do not tear
// each other.
#pragma once

#include <vector>

#include "base/log.h"
#include "train/report/progress.h"

namespace stepc::train {

class LogLines {
 public:
  explicit LogLines(Progress& progress);
  ~LogLines();
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

 private:
  std::vector<spdlog::sink_ptr> before_;
};

}  // namespace stepc::train
