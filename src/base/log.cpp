#include "base/log.h"

#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace stepc {

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> kLogger = [] {
    auto logger = std::make_shared<spdlog::logger>("stepc", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_pattern("%^[%n]%$ %v");
    return logger;
  }();
  return *kLogger;
}

}  // namespace stepc
