// A result as a line of JSON on standard output, at once: what comes after may end the process.
#pragma once

#include <cstdio>

#include <nlohmann/json.hpp>

namespace stepc {

inline void print_line(const nlohmann::json& line) {
  std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

}  // namespace stepc
