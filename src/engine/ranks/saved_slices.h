// What a rank saves of tensors that are held in parts: its slices of them, in files of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensors.h"
#include "engine/ranks/sharded_state.h"

namespace stepc {

// A slice that this rank saves, the `number`-th of its tensor.
struct SavedSlice {
  std::string name;
  Owner owner = Owner::kParameter;
  std::string key;
  size_t number = 0;
  ShardedState::Slice slice;
  bool is_kept = false;  // no step changes it: in files of its own, which later checkpoints share
};
using SavedSlices = std::vector<SavedSlice>;

// Of tensors by name, owner and key, what is this rank's to save.
SavedSlices slices_of(const ShardedState& state, SavedSlices whole);
// All of a tensor that no rank holds in parts.
SavedSlice slice_of_whole(const std::string& name, std::vector<int64_t> shape);
NamedTensors windows(const ShardedState& state, const SavedSlices& slices);
// In as many files as a tensor has slices here, and as many more of those that no step changes. `tensors`: what the
// slices hold, one for one. `mesh`: of all ranks that write slices, those of other stages too.
void write_slices(const std::filesystem::path& checkpoint, std::string_view which, const Ranks& ranks, const Mesh& mesh,
                  const SavedSlices& slices, const NamedTensors& tensors, std::optional<at::ScalarType> dtype,
                  FileSystem& files);

}  // namespace stepc
