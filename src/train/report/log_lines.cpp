#include "train/report/log_lines.h"

#include <memory>
#include <mutex>
#include <string>

#include <spdlog/sinks/base_sink.h>

#include "base/text.h"

namespace stepc::train {
namespace {

class ProgressSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ProgressSink(Progress& progress) : progress_(progress) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string text(message.payload.data(), message.payload.size());
    progress_.note(message.level >= spdlog::level::warn ? "warning: " + text : text);
  }
  void flush_() override {}

 private:
  Progress& progress_;
};

}  // namespace

LogLines::LogLines(Progress& progress) : before_(log().sinks()) {
  log().sinks() = {std::make_shared<ProgressSink>(progress)};
}

LogLines::~LogLines() { log().sinks() = before_; }

}  // namespace stepc::train
