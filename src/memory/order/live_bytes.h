// LiveBytes: a growing order with its live bytes. Runs units, and undoes the last ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory/order/order_problem.h"

namespace stepc {

class LiveBytes {
 public:
  explicit LiveBytes(const OrderProblem& problem);  // which must outlive this object

  // What running a unit now would do to live(): the rise while it runs, and the change after it.
  struct Step {
    int64_t rise = 0;
    int64_t net = 0;
  };
  [[nodiscard]] Step look(uint32_t unit);

  // Runs a unit; everything that it needs has run. take_back() undoes the last run(unit) that is not undone yet.
  Step run(uint32_t unit);
  void take_back(uint32_t unit);

  [[nodiscard]] int64_t live() const { return live_; }
  // The users of a value that have not run.
  [[nodiscard]] uint32_t users_left(uint32_t value) const { return users_left_[value]; }
  [[nodiscard]] bool dies_at(uint32_t value, uint32_t unit) const;

  // Calls taken(operand, result) for every value that would take over another value's memory if the unit ran now.
  template <class Taken>
  void for_each_reuse(uint32_t unit, Taken&& taken) {
    const std::vector<Reuse>& reuses = problem_.units[unit].reuses;
    for (size_t r = 0; r < reuses.size(); ++r) {
      if (!dies_at(reuses[r].operand, unit)) continue;
      const bool used = std::any_of(taken_.begin(), taken_.end(), [&](const Reuse& earlier) {
        return earlier.operand == reuses[r].operand || earlier.result == reuses[r].result;
      });
      if (used) continue;
      taken_.push_back(reuses[r]);
      taken(reuses[r].operand, reuses[r].result);
    }
    taken_.clear();
  }

 private:
  const OrderProblem& problem_;
  std::vector<uint32_t> users_left_;  // by value
  std::vector<Reuse> taken_;
  int64_t live_ = 0;
};

}  // namespace stepc
