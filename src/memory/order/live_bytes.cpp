#include "memory/order/live_bytes.h"

namespace stepc {

LiveBytes::LiveBytes(const OrderProblem& problem) : problem_(problem) {
  users_left_.reserve(problem.values.size());
  for (const OrderValue& value : problem.values) {
    users_left_.push_back(static_cast<uint32_t>(value.users.size()));
    if (value.producer == kNone) live_ += static_cast<int64_t>(value.bytes);
  }
}

bool LiveBytes::dies_at(uint32_t value, uint32_t unit) const {
  const OrderValue& one = problem_.values[value];
  return users_left_[value] == 1 && !one.kept && std::binary_search(one.users.begin(), one.users.end(), unit);
}

LiveBytes::Step LiveBytes::look(uint32_t unit) {
  const OrderUnit& one = problem_.units[unit];
  Step step{static_cast<int64_t>(one.workspace_bytes), 0};
  for (uint32_t value : one.makes) {
    const OrderValue& made = problem_.values[value];
    const auto bytes = static_cast<int64_t>(made.bytes);
    step.rise += bytes;
    if (made.kept || !made.users.empty()) step.net += bytes;
  }
  for_each_reuse(unit,
                 [&](uint32_t, uint32_t result) { step.rise -= static_cast<int64_t>(problem_.values[result].bytes); });
  for (uint32_t value : one.reads)
    if (users_left_[value] == 1 && !problem_.values[value].kept)
      step.net -= static_cast<int64_t>(problem_.values[value].bytes);
  return step;
}

LiveBytes::Step LiveBytes::run(uint32_t unit) {
  const Step step = look(unit);
  for (uint32_t value : problem_.units[unit].reads) --users_left_[value];
  live_ += step.net;
  return step;
}

void LiveBytes::take_back(uint32_t unit) {
  for (uint32_t value : problem_.units[unit].reads) ++users_left_[value];
  live_ -= look(unit).net;
}

}  // namespace stepc
