// What a person may choose for an accelerated step.
#pragma once

#include <cstdint>
#include <string_view>

namespace stepc {

enum class Mode : uint8_t {
  kEager,  // runs the step as it is: the baseline for measurements
  kExact,  // replays the recorded kernels from a planned arena, bit-equal to eager
};
std::string_view name_of(Mode mode);

enum class Verify : uint8_t {
  kOff,
  kFirst,  // the first replay of every plan is compared with eager, bit by bit
};

struct Config {
  Mode mode = Mode::kExact;
  Verify verify = Verify::kFirst;
  int max_plans = 8;       // plans kept, least recently used out first
  int max_recordings = 6;  // recordings of one signature before it stays eager
};

}  // namespace stepc
