// What one rank of several writes of a checkpoint: slices of the model's and the optimizer's tensors, which those of
// all ranks cover once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/ranks/saved_slices.h"
#include "engine/ranks/sharded_state.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// What is saved of a model, or of its adapter: names in the files, and the parameters' own.
std::vector<std::pair<std::string, std::string>> saved_names(const ModelDirectory& directory, models::Decoder model);

// Which of the tensors are this rank's stage's to save; none: all are.
using SavesFn = std::function<bool(Owner owner, const std::string& key)>;
// `model` and `optimizer` may be shapes alone. Weights are saved from their masters, where there are such.
SavedSlices weight_slices(const ModelDirectory& directory, models::Decoder model, const ShardedState& state,
                          const SavesFn& saves = {});
SavedSlices state_slices(const ChosenOptimizer& optimizer, const ShardedState& state, const SavesFn& saves = {});

// Of the copy that a save is written from: what both lists have is copied once.
uint64_t staged_bytes(const SavedSlices& weights, const SavedSlices& state, const ShardedState& of);
// Of the files: there it stands twice.
uint64_t saved_bytes(const SavedSlices& weights, const SavedSlices& state, const ShardedState& of);

// What a run keeps beside its step of what it saves.
struct CopiesNeed {
  uint64_t staging = 0;    // that saves are written from, in a run that saves while it trains
  uint64_t snapshots = 0;  // its own two places for them, where it takes any
  [[nodiscard]] uint64_t total() const { return staging + snapshots; }
};
CopiesNeed copies_need(const RunConfig& config, const NamedTensors& weights, const NamedTensors& state);
CopiesNeed copies_need(const RunConfig& config, const SavedSlices& weights, const SavedSlices& state,
                       const ShardedState& of);
// "copy for saves 1.0 MiB, ", and what else there is of it.
std::string to_text(const CopiesNeed& need);

}  // namespace stepc::train
