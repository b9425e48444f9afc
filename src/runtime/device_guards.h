// DeviceGuards: what a Graph's guards have computed on a device, copied to the host beside the run. The host looks at
// it before the first instruction behind the guard that could not be undone, and the device works meanwhile.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "schedule/schedule.h"

namespace stepc {

class DeviceGuards {
 public:
  explicit DeviceGuards(const Schedule& schedule);

  void begin_run() { open_ = 0; }
  // A guard's answer is asked for, not waited for.
  void ask(const at::Tensor& answer);
  [[nodiscard]] bool must_look(size_t instruction) const { return open_ > 0 && effects_.contains(instruction); }
  // Waits for what was asked for. Whether all of these guards hold.
  bool hold();
  // For each guard the first instruction behind it that changes what the program has, or runs code of its own.
  [[nodiscard]] const std::set<size_t>& effects() const { return effects_; }

 private:
  c10::Device device_;
  std::set<size_t> effects_;
  std::vector<at::Tensor> answers_;  // page-locked, as many as there are guards
  size_t open_ = 0;
  c10::Event asked_;  // for all that are open
};

}  // namespace stepc
