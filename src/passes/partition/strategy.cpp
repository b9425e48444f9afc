#include "passes/partition/strategy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "base/check.h"
#include "base/text.h"

namespace stepc {

namespace {
constexpr std::array<std::string_view, 4> kContexts = {"gather", "heads", "ring", "auto"};
}  // namespace

std::string_view name_of(Context context) { return kContexts[static_cast<size_t>(context)]; }

Context parse_context(std::string_view text) {
  const auto found = std::ranges::find(kContexts, text);
  USER_CHECK(found != kContexts.end(), "context is \"{}\"; it is \"gather\", \"heads\", \"ring\" or \"auto\"", text);
  return static_cast<Context>(found - kContexts.begin());
}

DType parse_reduce(std::string_view text) {
  if (text == "float32") return DType::kF32;
  if (text == "bfloat16") return DType::kBF16;
  user_error("parallel has reduce = \"{}\"; it is \"float32\" or \"bfloat16\"", text);
}

bool Strategy::keeps_along(Axis axis) const { return std::ranges::find(keeps, mesh.axes[axis].name) != keeps.end(); }

std::vector<Axis> state_axes(const Mesh& mesh) {
  std::vector<Axis> axes;
  for (std::string_view name : {"dp_shard", "cp"})
    if (const auto axis = mesh.find(name)) axes.push_back(*axis);
  return axes;
}

Mesh nearest_mesh(const Mesh& mesh, int64_t ranks) {
  std::vector<MeshAxis> axes = {{"dp_shard", 1}};
  for (const MeshAxis& axis : mesh.axes)
    if (axis.name == "dp_shard")
      axes.front() = axis;
    else
      axes.push_back(axis);
  std::vector<MeshAxis> tried = axes, best;
  double least = std::numeric_limits<double>::infinity();
  // Axis by axis, the last first, all divisors of the ranks that are left; dp_shard takes the rest.
  const std::function<void(size_t, int64_t, double)> try_axes = [&](size_t axis, int64_t left, double far) {
    const auto distance = [&](int64_t size) {
      return std::abs(std::log2(static_cast<double>(size) / static_cast<double>(axes[axis].size)));
    };
    if (axis == 0) {
      constexpr double kTie = 1e-9;
      far += distance(left) * (1 - kTie);
      tried[0].size = left;
      if (far < least) least = far, best = tried;
      return;
    }
    for (int64_t size = 1; size <= left; ++size) {
      if (left % size != 0) continue;
      tried[axis].size = size;
      try_axes(axis - 1, left / size, far + distance(size));
    }
  };
  try_axes(axes.size() - 1, ranks, 0);
  return make_mesh(best);
}

void check(const Strategy& strategy) {
  USER_CHECK(0 <= strategy.zero && strategy.zero <= 3,
             "zero is {}; it is 0 (nothing is split but the batch), 1, 2 or 3", strategy.zero);
  for (const ShardRule& rule : strategy.rules) {
    std::map<std::string, size_t> seen;
    for (const auto& [dim, axis] : rule.dims) {
      const auto [other, is_new] = seen.emplace(axis, dim);
      USER_CHECK(is_new, "the rule '{}' splits dimensions {} and {} along '{}'; an axis splits one of them",
                 rule.pattern, other->second, dim, axis);
      USER_CHECK(axis != "pp",
                 "the rule '{}' splits dimension {} along 'pp', along which there are stages: a parameter is "
                 "on one of them",
                 rule.pattern, dim);
      const auto known = mesh_axis_names();
      const auto near = nearest(axis, {known.rbegin(), known.rend()});
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
