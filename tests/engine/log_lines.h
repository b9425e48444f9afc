// What stepc logs while a test runs.
#pragma once

#include <memory>
#include <sstream>
#include <string>

#include <spdlog/sinks/ostream_sink.h>

#include "base/log.h"

namespace stepc::test {

// Collects the log lines of a test.
class LogLines {
 public:
  LogLines() : sink_(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)) { log().sinks().push_back(sink_); }
  ~LogLines() { log().sinks().pop_back(); }
  std::string text() const { return text_.str(); }
  int count(const std::string& part) const {
    int found = 0;
    for (size_t at = text().find(part); at != std::string::npos; at = text().find(part, at + 1)) ++found;
    return found;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_;
};

}  // namespace stepc::test
