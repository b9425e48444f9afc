// The checkpoints of a run: training stalls for a copy of the state, the files are written beside it. Owns the copy and
// the thread that writes; reads the learner.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/background_saver.h"
#include "comm/ranks.h"
#include "train/config/run_config.h"
#include "train/report/report.h"
#include "train/step/learner.h"
#include "train/step/staged_checkpoint.h"

namespace stepc::train {

// Whether a run with this config saves while it trains, which takes a copy of the state.
bool saves_while_training(const RunConfig& config);

class RunSaver {
 public:
  // `newest`: the checkpoint that is there. A run that will save while it trains takes the memory of the copy now.
  // `ranks`: those that save together, each its slices, and make every call below together; none: this process alone.
  RunSaver(const RunConfig& config, std::filesystem::path output, Learner& learner,
           const std::optional<Checkpoint>& newest, FileSystem& files, std::shared_ptr<Ranks> ranks,
           std::string mesh = {});

  // Begins a save of a copy. None may be in flight. `is_best`: of the checkpoints so far; of several ranks such a one
  // is made plain, tensor by tensor.
  void begin(const TrainerState& state, bool is_best);
  // The same without a copy: for when training stands still until it has ended.
  void begin_in_place(const TrainerState& state, bool is_best);
  // What a save came to that ended since the last call, in words. Throws the UserError of one that failed, of several
  // ranks on all of them.
  std::optional<std::string> poll();
  // The same, of the save in flight: waits for it.
  std::optional<std::string> wait();

  [[nodiscard]] bool is_writing() const { return phase_ != Phase::kNone; }
  // Of the newest save that is durable.
  [[nodiscard]] int64_t saved_step() const { return saved_step_; }
  // Its directory, which the first of several ranks knows.
  [[nodiscard]] const std::filesystem::path& saved_directory() const { return saved_directory_; }
  [[nodiscard]] const SavesMade& made() const { return made_; }

 private:
  // Of several ranks, all write, and then the first one commits.
  enum class Phase : uint8_t { kNone, kWriting, kCommitting };

  void write_with(const TrainerState& state, bool is_best, const NamedTensors& weights,
                  const NamedTensors& optimizer_state);
  void open_for_all(const TrainerState& state);
  // Whether the phase has ended on every rank.
  template <class Work>
  bool all_have(const Work& work);
  void commit(const ManifestFiles& own);
  std::optional<std::string> acknowledge(const std::optional<SavedCheckpoint>& saved);

  const RunConfig& config_;
  Learner& learner_;
  std::shared_ptr<Ranks> ranks_;
  std::string mesh_;
  bool is_first_;
  std::optional<StagedCheckpoint> staged_;
  NamedTensors live_weights_, live_state_;  // what a save without a copy writes from
  SavesMade made_;
  int64_t saved_step_ = 0;
  std::filesystem::path saved_directory_;
  Phase phase_ = Phase::kNone;
  int64_t step_ = 0;  // that is being saved
  bool is_best_ = false;
  std::filesystem::path open_;  // where all write
  std::optional<ManifestFiles> written_;
  std::optional<SavedCheckpoint> committed_;
  BackgroundSaver saver_;  // last: its thread reads the above until it is joined
};

}  // namespace stepc::train
