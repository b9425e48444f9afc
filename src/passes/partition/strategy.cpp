#include "passes/partition/strategy.h"

#include "base/check.h"

namespace stepc {

void check(const Strategy& strategy) {
  USER_CHECK(0 <= strategy.zero && strategy.zero <= 3,
             "zero is {}; it is 0 (nothing is split but the batch), 1, 2 or 3", strategy.zero);
  for (const ShardRule& rule : strategy.rules)
    for (const auto& [dim, axis] : rule.dims)
      USER_CHECK(strategy.mesh.find(axis),
                 "the rule for '{}' splits dimension {} along '{}', which the mesh {} has not", rule.pattern, dim, axis,
                 to_text(strategy.mesh));
}

}  // namespace stepc
