// Mesh: the devices of a run as a grid with named axes. Plain data. Ranks count row by row, the last axis fastest, so
// neighbours on the last axis (tensor parallel) are neighbours on a machine.
//
//   dp_replicate=2, dp_shard=4, tp=2      16 ranks; rank 5 is at (0, 2, 1)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

// A mesh has at most 32 axes; an axis is named by its place.
using Axis = uint32_t;

struct Mesh {
  std::vector<MeshAxis> axes;
  bool operator==(const Mesh&) const = default;

  [[nodiscard]] int64_t ranks() const;
  [[nodiscard]] std::optional<Axis> find(std::string_view name) const;
  [[nodiscard]] int64_t size(Axis axis) const { return axes[axis].size; }
  [[nodiscard]] int64_t size(const std::vector<Axis>& of) const;  // their product
};

// The axis of micro-batches: no ranks, but turns of the same ranks, one after the other (passes/stages/cut_batch.h). It
// is the last of a mesh, so the rows of a rank are split along it, and those of its neighbours are not.
inline constexpr std::string_view kMicroBatchAxis = "mb";

// The names that a mesh can have, in the order in which their axes stand.
std::span<const std::string_view> mesh_axis_names();
// Axes in that order; those of size 1, along which nothing is split, are left out. UserError for a name that is none
// (with the nearest), a size below 1, a name given twice, more ranks than 2^20.
Mesh make_mesh(const std::vector<MeshAxis>& axes);
// "dp_shard=2,tp=4", and back.
Mesh parse_mesh(std::string_view text);
std::string to_text(const Mesh& mesh);

// Where a rank stands on each axis.
std::vector<int64_t> coordinates_of(const Mesh& mesh, int64_t rank);
// The ranks that differ from `rank` along `axes` alone, itself among them, the last of `axes` fastest.
std::vector<int64_t> group_of(const Mesh& mesh, const std::vector<Axis>& axes, int64_t rank);

}  // namespace stepc
