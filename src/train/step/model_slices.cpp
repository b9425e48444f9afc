#include "train/step/model_slices.h"

#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/part_slots.h"
#include "models/lora.h"
#include "train/run/run_saver.h"
#include "train/step/local_learner.h"
#include "train/step/staged_checkpoint.h"

namespace stepc::train {

std::vector<std::pair<std::string, std::string>> saved_names(const ModelDirectory& directory, models::Decoder model) {
  std::map<const void*, std::string> own;
  for (const auto& item : model->named_parameters()) own[item.value().unsafeGetTensorImpl()] = item.key();
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [name, tensor] : directory.adapter ? models::adapter_state(model) : model->persistent_state())
    names.emplace_back(name, own.at(tensor.unsafeGetTensorImpl()));
  return names;
}

SavedSlices weight_slices(const ModelDirectory& directory, models::Decoder model, const ShardedState& state,
                          const SavesFn& saves) {
  SavedSlices whole;
  for (const auto& [name, own] : saved_names(directory, std::move(model))) {
    if (saves && !saves(Owner::kParameter, own)) continue;
    const std::string master = own + std::string(kMasterSuffix);
    const bool has_master = !directory.adapter && state.has(Owner::kOptimizerState, master);
    whole.push_back({name, has_master ? Owner::kOptimizerState : Owner::kParameter, has_master ? master : own, 0, {}});
  }
  return slices_of(state, std::move(whole));
}

SavedSlices state_slices(const ChosenOptimizer& optimizer, const ShardedState& state, const SavesFn& saves) {
  SavedSlices whole;
  for (const auto& [name, tensor] : optimizer.optimizer->named_state())
    if (!saves || saves(Owner::kOptimizerState, name)) whole.push_back({name, Owner::kOptimizerState, name, 0, {}});
  return slices_of(state, std::move(whole));
}

uint64_t saved_bytes(const SavedSlices& weights, const SavedSlices& state, const ShardedState& of) {
  uint64_t bytes = 0;
  for (const SavedSlices* list : {&weights, &state})
    for (const SavedSlice& one : *list) bytes += one.slice.elements() * of.element_bytes(one.owner, one.key);
  return bytes;
}

namespace {
// `of`: further values on which the bytes of both lists depend.
template <typename List, typename... Of>
CopiesNeed copies_of(const RunConfig& config, const List& weights, const List& state, const Of&... of) {
  CopiesNeed need;
  if (saves_while_training(config)) need.staging = staged_bytes(weights, state, of...);
  if (config.elastic.snapshot_every > 0) need.snapshots = PartSlots::kSlots * saved_bytes(weights, state, of...);
  return need;
}
}  // namespace

CopiesNeed copies_need(const RunConfig& config, const NamedTensors& weights, const NamedTensors& state) {
  return copies_of(config, weights, state);
}

CopiesNeed copies_need(const RunConfig& config, const SavedSlices& weights, const SavedSlices& state,
                       const ShardedState& of) {
  return copies_of(config, weights, state, of);
}

std::string to_text(const CopiesNeed& need) {
  std::string text;
  if (need.staging > 0) text += str("copy for saves {}, ", human_bytes(need.staging));
  if (need.snapshots > 0) text += str("snapshots {}, ", human_bytes(need.snapshots));
  return text;
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
