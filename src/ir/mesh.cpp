#include "ir/mesh.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"

namespace stepc {

namespace {
constexpr std::array<std::string_view, 7> kAxisNames = {"pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "mb"};
constexpr int64_t kMostRanks = int64_t{1} << 20;

void check_axis_name(const std::string& name) {
  if (std::ranges::find(kAxisNames, name) != kAxisNames.end()) return;
  const auto begins =
      std::ranges::find_if(kAxisNames, [&](std::string_view axis) { return !name.empty() && axis.starts_with(name); });
  const auto near = begins != kAxisNames.end() ? std::optional(std::string(*begins))
                    : name.empty()             ? std::nullopt
                                               : nearest(name, {kAxisNames.rbegin(), kAxisNames.rend()});
  user_error("no axis of a mesh is named '{}'{}; there are {}", name, near ? str(" (did you mean '{}'?)", *near) : "",
             fmt::join(kAxisNames, ", "));
}
}  // namespace

int64_t Mesh::ranks() const {
  int64_t product = 1;
  for (const MeshAxis& axis : axes) product *= axis.size;
  return product;
}

std::optional<Axis> Mesh::find(std::string_view name) const {
  const auto found = std::ranges::find(axes, name, &MeshAxis::name);
  if (found == axes.end()) return std::nullopt;
  return static_cast<Axis>(found - axes.begin());
}

int64_t Mesh::size(const std::vector<Axis>& of) const {
  int64_t product = 1;
  for (Axis axis : of) product *= size(axis);
  return product;
}

std::span<const std::string_view> mesh_axis_names() { return kAxisNames; }

Mesh make_mesh(const std::vector<MeshAxis>& axes) {
  Mesh mesh;
  int64_t ranks = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto& [name, size] = axes[i];
    check_axis_name(name);
    USER_CHECK(size >= 1, "the mesh has {} along '{}'; the least is 1", size, name);
    for (size_t j = 0; j < i; ++j)
      USER_CHECK(axes[j].name != name, "the mesh has the axis '{}' twice; give it once", name);
    USER_CHECK(size <= kMostRanks / ranks, "{} ranks along '{}' make a mesh of more than {} ranks; that is the most",
               size, name, kMostRanks);
    ranks *= size;
  }
  for (std::string_view name : kAxisNames)
    for (const MeshAxis& axis : axes)
      if (axis.name == name && axis.size > 1) mesh.axes.push_back(axis);
  return mesh;
}

Mesh parse_mesh(std::string_view text) {
  std::vector<MeshAxis> axes;
  for (const std::string& part : split(text, ',')) {
    const std::string_view entry = trim(part);
    if (entry.empty() && trim(text).empty()) continue;
    const size_t equal = entry.find('=');
    USER_CHECK(equal != std::string_view::npos, "'{}' is no axis of a mesh; write dp_shard=2,tp=4", entry);
    const std::string_view digits = trim(entry.substr(equal + 1));
    MeshAxis axis{std::string(trim(entry.substr(0, equal))), 0};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), axis.size);
    USER_CHECK(error == std::errc() && end == digits.data() + digits.size() && !digits.empty(),
               "'{}' is no size of the axis '{}'; write a number of ranks, as in tp=2", digits, axis.name);
    axes.push_back(std::move(axis));
  }
  return make_mesh(axes);
}

std::string to_text(const Mesh& mesh) {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : mesh.axes) parts.push_back(str("{}={}", axis.name, axis.size));
  return str("{}", fmt::join(parts, ","));
}

std::vector<int64_t> coordinates_of(const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> out(mesh.axes.size(), 0);
  for (size_t a = mesh.axes.size(); a-- > 0;) {
    out[a] = rank % mesh.axes[a].size;
    rank /= mesh.axes[a].size;
  }
  return out;
}

std::vector<int64_t> group_of(const Mesh& mesh, const std::vector<Axis>& axes, int64_t rank) {
  std::vector<int64_t> strides(mesh.axes.size(), 1);
  for (size_t a = mesh.axes.size(); a-- > 1;) strides[a - 1] = strides[a] * mesh.axes[a].size;
  const std::vector<int64_t> at = coordinates_of(mesh, rank);
  for (Axis axis : axes) rank -= at[axis] * strides[axis];
  std::vector<int64_t> ranks = {rank};
  for (Axis axis : axes) {
    std::vector<int64_t> next;
    for (int64_t base : ranks)
      for (int64_t i = 0; i < mesh.size(axis); ++i) next.push_back(base + i * strides[axis]);
    ranks = std::move(next);
  }
  return ranks;
}

}  // namespace stepc
