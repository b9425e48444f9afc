// One logger for the process. Lines go to standard error; the level comes from the program, never from the environment.
#pragma once

#include <spdlog/spdlog.h>

namespace stepc {

// The logger "stepc"; created on first use, level info.
spdlog::logger& log();

}  // namespace stepc
