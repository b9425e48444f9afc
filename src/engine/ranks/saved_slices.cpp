#include "engine/ranks/saved_slices.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace stepc {

SavedSlices slices_of(const ShardedState& state, SavedSlices whole) {
  // The largest tensors come first, so that ranks that take turns write about the same amount.
  std::ranges::stable_sort(whole, std::greater<>(),
                           [&](const SavedSlice& one) { return state.whole_bytes(one.owner, one.key); });
  SavedSlices slices;
  for (size_t turn = 0; turn < whole.size(); ++turn) {
    size_t number = 0;
    for (ShardedState::Slice& slice : state.slices(whole[turn].owner, whole[turn].key, turn)) {
      SavedSlice& one = slices.emplace_back(whole[turn]);
      one.number = number++;
      one.slice = std::move(slice);
    }
  }
  return slices;
}

SavedSlice slice_of_whole(const std::string& name, std::vector<int64_t> shape) {
  const std::vector<int64_t> beginning(shape.size());
  return {name, Owner::kOptimizerState, {}, 0, {shape, {beginning, shape}, beginning}};
}

NamedTensors windows(const ShardedState& state, const SavedSlices& slices) {
  NamedTensors windows;
  for (const SavedSlice& one : slices) windows.emplace_back(one.name, state.window(one.owner, one.key, one.slice));
  return windows;
}

void write_slices(const std::filesystem::path& checkpoint, std::string_view which, const Ranks& ranks, const Mesh& mesh,
                  const SavedSlices& slices, const NamedTensors& tensors, std::optional<at::ScalarType> dtype,
                  FileSystem& files) {
  // The number of files of a kind is the largest number of slices that a tensor of it has.
  const auto files_of = [&](bool is_kept) {
    int64_t count = 0;
    for (const SavedSlice& one : slices)
      if (one.is_kept == is_kept) count = std::max(count, static_cast<int64_t>(one.number) + 1);
    return count;
  };
  const int64_t kept = files_of(true), count = kept + files_of(false);
  for (int64_t file = 0; file < count; ++file) {
    MadeTensors made;
    std::vector<std::string> names;
    std::vector<Box> boxes;
    std::vector<std::vector<int64_t>> shapes;
    for (size_t i = 0; i < slices.size(); ++i) {
      if (static_cast<int64_t>(slices[i].number) + (slices[i].is_kept ? 0 : kept) != file) continue;
      const at::Tensor& tensor = tensors[i].second;
      const at::ScalarType type = dtype.value_or(tensor.scalar_type());
      made.push_back({slices[i].name, type, tensor.sizes().vec(), [&tensor, type] { return tensor.to(type); }});
      names.push_back(slices[i].name);
      boxes.push_back(slices[i].slice.box);
      shapes.push_back(slices[i].slice.shape);
    }
    const SliceFile name{ranks.rank_in_run(), std::string(which), file, count};
    save_tensors(checkpoint / name_of(name), made, metadata_of_slices(names, boxes, shapes, to_text(mesh)), files);
  }
}

}  // namespace stepc
