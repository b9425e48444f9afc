#include "train/report/step_times.h"

#include <algorithm>

namespace stepc::train {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void StepTimes::add(double seconds) { seconds_.push_back(seconds); }

double StepTimes::recent() const {
  const size_t count = std::min(window_, seconds_.size());
  return median({seconds_.end() - static_cast<std::ptrdiff_t>(count), seconds_.end()});
}

double StepTimes::overall() const { return median(seconds_); }

}  // namespace stepc::train
