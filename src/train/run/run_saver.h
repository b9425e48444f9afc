// The checkpoints of a run: training stalls for a copy of the state, the files are written beside it. Owns the copy and
// the thread that writes; reads the learner.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/background_saver.h"
#include "train/config/run_config.h"
#include "train/report/report.h"
#include "train/step/learner.h"
#include "train/step/staged_checkpoint.h"

namespace stepc::train {

// Whether a run with this config saves while it trains, which takes a copy of the state.
bool saves_while_training(const RunConfig& config);

class RunSaver {
 public:
  // `saved_step`: of the newest checkpoint that is there. A run that will save while it trains takes the memory of the
  // copy now. Of several ranks, which save together, one `writes`.
  RunSaver(const RunConfig& config, std::filesystem::path output, Learner& learner, int64_t saved_step,
           FileSystem& files, bool writes);

  // Begins a save of a copy. None may be in flight.
  void begin(const TrainerState& state);
  // The same without a copy: for when training stands still until it has ended.
  void begin_in_place(const TrainerState& state);
  // What a save came to that ended since the last call, in words. Throws the UserError of one that failed.
  std::optional<std::string> poll() { return acknowledge(saver_.poll()); }
  std::optional<std::string> wait() { return acknowledge(saver_.wait()); }

  [[nodiscard]] bool is_writing() const { return saver_.in_flight(); }
  // Of the newest save that is durable.
  [[nodiscard]] int64_t saved_step() const { return saved_step_; }
  [[nodiscard]] const SavesMade& made() const { return made_; }

 private:
  void write_with(const TrainerState& state, const NamedTensors& weights, const NamedTensors& optimizer_state);
  std::optional<std::string> acknowledge(const std::optional<SavedCheckpoint>& saved);

  const RunConfig& config_;
  Learner& learner_;
  bool writes_;
  std::optional<StagedCheckpoint> staged_;
  NamedTensors live_weights_, live_state_;  // what a save without a copy writes from
  SavesMade made_;
  int64_t saved_step_;
  BackgroundSaver saver_;  // last: its thread reads the above until it is joined
};

}  // namespace stepc::train
