// RunTimes: the begin and end of each instruction of one run. A caller that wants a profile passes one to the run
// (RunInputs::times); without it a run reads no clock.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace stepc {

struct InstructionTime {
  size_t index = 0;                           // an instruction of the Schedule
  double begin_seconds = 0, end_seconds = 0;  // from the beginning of the run
};

class RunTimes {
 public:
  // Begins a run and discards earlier times.
  void begin() {
    instructions_.clear();
    begin_ = Clock::now();
  }
  [[nodiscard]] double now() const { return seconds_since(begin_); }
  void add(const InstructionTime& time) { instructions_.push_back(time); }
  void end() { seconds_ = now(); }

  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] const std::vector<InstructionTime>& instructions() const { return instructions_; }  // in order

 private:
  Clock::time_point begin_;
  double seconds_ = 0;
  std::vector<InstructionTime> instructions_;
};

}  // namespace stepc
