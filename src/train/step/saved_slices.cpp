#include "train/step/saved_slices.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "models/lora.h"
#include "train/step/local_learner.h"

namespace stepc::train {

namespace {

// The tensors, each whole, as the slices of them that this rank saves.
SavedSlices slices_of(SavedSlices whole, const ShardedState& state) {
  // The largest first, so that those ranks which take turns write about as much as each other.
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

}  // namespace

std::vector<std::pair<std::string, std::string>> saved_names(const ModelDirectory& directory, models::Decoder model) {
  std::map<const void*, std::string> own;
  for (const auto& item : model->named_parameters()) own[item.value().unsafeGetTensorImpl()] = item.key();
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, tensor] : directory.adapter ? models::adapter_state(model) : model->persistent_state())
    names.emplace_back(name, own.at(tensor.unsafeGetTensorImpl()));
  return names;
}

SavedSlices weight_slices(const ModelDirectory& directory, models::Decoder model, const ShardedState& state) {
  SavedSlices whole;
  for (const auto& [name, own] : saved_names(directory, std::move(model))) {
    const std::string master = own + std::string(kMasterSuffix);
    const bool has_master = !directory.adapter && state.has(Owner::kOptimizerState, master);
    whole.push_back({name, has_master ? Owner::kOptimizerState : Owner::kParameter, has_master ? master : own, 0, {}});
  }
  return slices_of(std::move(whole), state);
}

SavedSlices state_slices(const ChosenOptimizer& optimizer, const ShardedState& state) {
  SavedSlices whole;
  for (const auto& [name, tensor] : optimizer.optimizer->named_state())
    whole.push_back({name, Owner::kOptimizerState, name, 0, {}});
  return slices_of(std::move(whole), state);
}

uint64_t staged_bytes(const SavedSlices& weights, const SavedSlices& state, const ShardedState& of) {
  std::set<std::pair<std::string, size_t>> known;
  uint64_t bytes = 0;
  const auto add = [&](const SavedSlice& one) { bytes += one.slice.elements() * of.element_bytes(one.owner, one.key); };
  for (const SavedSlice& one : state) {
    known.emplace(one.key, one.number);
    add(one);
  }
  for (const SavedSlice& one : weights)
    if (one.owner != Owner::kOptimizerState || !known.contains({one.key, one.number})) add(one);
  return bytes;
}

}  // namespace stepc::train
