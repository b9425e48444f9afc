// RefusedPrograms: what the code generators of a Schedule throw.
#pragma once
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace stepc {

// The programs of a Schedule for which no code could be generated.
class RefusedPrograms : public std::runtime_error {
 public:
  explicit RefusedPrograms(std::map<uint32_t, std::string> which)
      : std::runtime_error(which.begin()->second), why(std::move(which)) {}
  std::map<uint32_t, std::string> why;  // by program
};

}  // namespace stepc
