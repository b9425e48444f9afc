// How long a step takes now: the median of the last steps, so that a checkpoint, a recording or a busy neighbour does
// not move it.
#pragma once

#include <cstddef>
#include <vector>

namespace stepc::train {

class StepTimes {
 public:
  explicit StepTimes(size_t window = 31) : window_(window) {}

  void add(double seconds);
  // Median of the last steps; 0 before the first.
  [[nodiscard]] double recent() const;
  // Median of all steps.
  [[nodiscard]] double overall() const;

 private:
  size_t window_;
  std::vector<double> seconds_;  // of every step
};

}  // namespace stepc::train
