#include "train/run/run_saver.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "train/config/resume.h"

namespace stepc::train {

bool saves_while_training(const RunConfig& config) { return config.output.save_every > 0 || config.output.keep_best; }

RunSaver::RunSaver(const RunConfig& config, std::filesystem::path output, Learner& learner, int64_t saved_step,
                   FileSystem& files, bool writes)
    : config_(config), learner_(learner), writes_(writes), saved_step_(saved_step), saver_(std::move(output), files) {
  if (saves_while_training(config) && learner.staged_bytes() > 0) staged_.emplace(learner.weights(), learner.state());
  if (staged_) made_.staging_bytes = staged_->bytes();
}

void RunSaver::begin(const TrainerState& state) {
  const auto began = Clock::now();
  if (!staged_) {  // what a rank gathers is a copy
    begin_in_place(state);
    made_.staging_seconds = seconds_since(began);
    return;
  }
  staged_->copy(learner_.weights(), learner_.state());
  made_.staging_seconds = seconds_since(began);
  write_with(state, staged_->weights(), staged_->state());
}

void RunSaver::begin_in_place(const TrainerState& state) {
  live_weights_ = learner_.weights();
  live_state_ = learner_.state();
  write_with(state, live_weights_, live_state_);
}

void RunSaver::write_with(const TrainerState& state, const NamedTensors& weights, const NamedTensors& optimizer_state) {
  if (!writes_) {
    saved_step_ = state.step;
    return;
  }
  const Retention retention{
      .last = config_.output.keep_last, .every = config_.output.keep_every, .best = config_.output.keep_best};
  // Asked now: the step goes on beside what follows.
  const std::optional<Target> target = learner_.weighed_with();
  saver_.begin(state, retention, [this, &weights, &optimizer_state, target](const auto& directory, FileSystem& files) {
    learner_.write_checkpoint(directory, weights, optimizer_state, files);
    save_run_config(directory, config_, files);
    if (target) save_target(directory, *target, files);
  });
}

std::optional<std::string> RunSaver::acknowledge(const std::optional<SavedCheckpoint>& saved) {
  if (!saved) return std::nullopt;
  saved_step_ = saved->step;
  ++made_.count;
  made_.bytes = saved->bytes;
  made_.writing_seconds = saved->seconds;
  return str("saved {}: {}, written in {:.2f} s", saved->directory.string(), human_bytes(saved->bytes), saved->seconds);
}

}  // namespace stepc::train
