#include "passes/partition/strategy.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

bool Strategy::keeps_along(Axis axis) const { return std::ranges::find(keeps, mesh.axes[axis].name) != keeps.end(); }

void check(const Strategy& strategy) {
  USER_CHECK(0 <= strategy.zero && strategy.zero <= 3,
             "zero is {}; it is 0 (nothing is split but the batch), 1, 2 or 3", strategy.zero);
  for (const ShardRule& rule : strategy.rules) {
    std::map<std::string, size_t> seen;
    for (const auto& [dim, axis] : rule.dims) {
      const auto [other, is_new] = seen.emplace(axis, dim);
      USER_CHECK(is_new, "the rule '{}' splits dimensions {} and {} along '{}'; an axis splits one of them",
                 rule.pattern, other->second, dim, axis);
      const auto known = mesh_axis_names();
      const auto near = nearest(axis, {known.begin(), known.end()});
      const bool is_axis = std::ranges::find(known, axis) != known.end();
      USER_CHECK(is_axis, "the rule '{}' splits dimension {} along '{}', which is no axis of a mesh{}", rule.pattern,
                 dim, axis, near ? str("; did you mean '{}'?", *near) : "");
      USER_CHECK(strategy.mesh.find(axis),
                 "the rule '{}' splits dimension {} along '{}', and the mesh {} has no more than one rank there",
                 rule.pattern, dim, axis, strategy.mesh.axes.empty() ? "of one device" : to_text(strategy.mesh));
    }
  }
}

}  // namespace stepc
