#include "memory/order/list_order.h"

#include <set>
#include <utility>

#include "base/check.h"
#include "memory/order/live_bytes.h"

namespace stepc {

UnitOrder least_increase_order(const OrderProblem& problem) {
  const auto after = successors(problem);
  std::vector<uint32_t> waits_for(problem.units.size(), 0);
  for (const auto& later : after)
    for (uint32_t unit : later) ++waits_for[unit];

  LiveBytes bytes(problem);
  std::set<std::pair<int64_t, uint32_t>> ready;
  std::vector<int64_t> net_of(problem.units.size(), 0);
  const auto make_ready = [&](uint32_t unit) {
    net_of[unit] = bytes.look(unit).net;
    ready.emplace(net_of[unit], unit);
  };
  for (uint32_t u = 0; u < problem.units.size(); ++u)
    if (waits_for[u] == 0) make_ready(u);

  UnitOrder order;
  std::vector<bool> done(problem.units.size(), false);
  while (!ready.empty()) {
    const uint32_t unit = ready.begin()->second;
    ready.erase(ready.begin());
    bytes.run(unit);
    order.push_back(unit);
    done[unit] = true;
    for (uint32_t value : problem.units[unit].reads) {  // the last one that reads it would now free it
      if (bytes.users_left(value) != 1) continue;
      for (uint32_t user : problem.values[value].users) {
        if (done[user] || waits_for[user] != 0) continue;
        ready.erase({net_of[user], user});
        make_ready(user);
      }
    }
    for (uint32_t later : after[unit])
      if (--waits_for[later] == 0) make_ready(later);
  }
  INTERNAL_CHECK_EQ(order.size(), problem.units.size());
  return order;
}

}  // namespace stepc
