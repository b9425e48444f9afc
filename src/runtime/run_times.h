// RunTimes: the begin and end of each instruction of one run. A caller that wants a profile passes one to the run
// (RunInputs::times); without it a run reads no clock.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "runtime/device_clock.h"

namespace stepc {

struct InstructionTime {
  size_t index = 0;                           // an instruction of the Schedule
  double begin_seconds = 0, end_seconds = 0;  // of the host's call, from the beginning of the run
  // On a device: from when it came to the instruction until it had ended what the instruction launched. A device that
  // waits for the host's launches waits here.
  double device_begin_seconds = 0, device_end_seconds = 0;
};

class RunTimes {
 public:
  // Begins a run and discards earlier times. `device`: where its instructions run, empty for the CPU; both clocks begin
  // when the device has ended what came before.
  void begin(const std::string& device) {
    instructions_.clear();
    clock_.reset();
    if (!device.empty()) {
      clock_.emplace(c10::Device(device));
      clock_->mark();
      clock_->wait();
    }
    begin_ = Clock::now();
  }
  void begin_instruction(size_t index) {
    if (clock_) clock_->mark();
    instructions_.push_back({.index = index, .begin_seconds = now()});
  }
  void end_instruction() {
    instructions_.back().end_seconds = now();
    if (clock_) clock_->mark();
  }
  // Waits for the device.
  void end() {
    call_seconds_ = now();
    if (clock_) {
      clock_->wait();
      const std::vector<double> marks = clock_->seconds();
      for (size_t k = 0; k < instructions_.size(); ++k) {
        instructions_[k].device_begin_seconds = marks[2 * k + 1];
        instructions_[k].device_end_seconds = marks[2 * k + 2];
      }
      clock_.reset();
    }
    seconds_ = now();
  }

  [[nodiscard]] double seconds() const { return seconds_; }            // until everything had ended,
  [[nodiscard]] double call_seconds() const { return call_seconds_; }  // and until the host had called it
  [[nodiscard]] const std::vector<InstructionTime>& instructions() const { return instructions_; }  // in order

 private:
  [[nodiscard]] double now() const { return seconds_since(begin_); }

  Clock::time_point begin_;
  std::optional<DeviceClock> clock_;
  double seconds_ = 0, call_seconds_ = 0;
  std::vector<InstructionTime> instructions_;
};

}  // namespace stepc
