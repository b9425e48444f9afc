#include "train/run/run_saver.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "checkpoint/tensors.h"
#include "train/config/resume.h"
#include "train/step/local_learner.h"

namespace stepc::train {

bool saves_while_training(const RunConfig& config) { return config.output.save_every > 0 || config.output.keep_best; }

namespace {

Retention retention_of(const RunConfig& config) {
  return {.last = config.output.keep_last, .every = config.output.keep_every, .best = config.output.keep_best};
}

// Makes plain files from the slices of all ranks, with at most one tensor in memory.
void make_plain(const std::filesystem::path& checkpoint, uint64_t max_shard_bytes, FileSystem& files) {
  export_model(open_model_directory(checkpoint), checkpoint, max_shard_bytes, files);
  {
    const TensorFiles state(checkpoint, kOptimizerFiles);
    save_tensors(checkpoint / kOptimizerFile, made_of(state), {}, files);
  }
  std::vector<std::filesystem::path> slices;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    if (parse_slice_file(entry.path().filename().string())) slices.push_back(entry.path());
  for (const auto& path : slices) remove_tree(path, files);
}

}  // namespace

RunSaver::RunSaver(const RunConfig& config, std::filesystem::path output, Learner& learner,
                   const std::optional<Checkpoint>& newest, FileSystem& files, std::shared_ptr<Ranks> ranks,
                   std::string mesh)
    : config_(config),
      learner_(learner),
      ranks_(std::move(ranks)),
      mesh_(std::move(mesh)),
      is_first_(ranks_ == nullptr || ranks_->rank() == 0),
      saver_(std::move(output), files) {
  if (newest) {
    saved_step_ = newest->state.step;
    saved_directory_ = newest->directory;
  }
  if (saves_while_training(config)) staged_.emplace(learner.weights(), learner.state());
  if (staged_) made_.staging_bytes = staged_->bytes();
}

void RunSaver::begin(const TrainerState& state, bool is_best) {
  INTERNAL_CHECK(staged_.has_value(), "a run that saves while it trains has a copy");
  const auto began = Clock::now();
  staged_->copy(learner_.weights(), learner_.state());
  made_.staging_seconds = seconds_since(began);
  write_with(state, is_best, staged_->weights(), staged_->state());
}

void RunSaver::begin_in_place(const TrainerState& state, bool is_best) {
  live_weights_ = learner_.weights();
  live_state_ = learner_.state();
  write_with(state, is_best, live_weights_, live_state_);
}

void RunSaver::write_with(const TrainerState& state, bool is_best, const NamedTensors& weights,
                          const NamedTensors& optimizer_state) {
  INTERNAL_CHECK(!is_writing(), "a checkpoint is being saved already");
  step_ = state.step;
  is_best_ = is_best;
  // The Target is read now, because the step continues meanwhile.
  const std::optional<Target> target = learner_.weighed_with();
  auto write_files = [this, &weights, &optimizer_state, target](const auto& directory, FileSystem& files) {
    learner_.write_checkpoint(directory, weights, optimizer_state, files);
    if (is_first_) save_origin(directory, config_, target, files);
  };
  if (ranks_ == nullptr) {
    saver_.begin(state, retention_of(config_), write_files);
    phase_ = Phase::kCommitting;
    return;
  }
  open_for_all(state);
  saver_.begin_writing(open_, beginning_of_slice_files(ranks_->rank()), write_files);
  phase_ = Phase::kWriting;
}

void RunSaver::open_for_all(const TrainerState& state) {
  std::string mine;
  try {
    if (is_first_) mine = saver_.open(state).string();
  } catch (const UserError& error) {
    ranks_->fail(error.what());
  }
  open_ = ranks_->exchange(mine)[0];
}

// `work` returns whether it has ended on this rank; an exception ends all ranks.
template <class Work>
bool RunSaver::all_have(const Work& work) {
  bool has_ended = false;
  try {
    has_ended = work();
  } catch (const UserError& error) {
    ranks_->fail(str("step {} could not be saved: {}", step_, error.what()));
  }
  return ranks_->largest(has_ended ? 0 : 1) == 0;
}

std::optional<std::string> RunSaver::poll() {
  if (!is_writing()) return std::nullopt;
  if (ranks_ == nullptr) return acknowledge(saver_.poll());
  if (phase_ == Phase::kWriting) {
    const auto has_written = [&] {
      if (!written_) written_ = saver_.poll_written();
      return written_.has_value();
    };
    if (!all_have(has_written)) return std::nullopt;
    commit(*std::exchange(written_, std::nullopt));
    phase_ = Phase::kCommitting;
  }
  const auto has_committed = [&] {
    if (!committed_) committed_ = saver_.poll();
    return !saver_.in_flight();
  };
  if (!all_have(has_committed)) return std::nullopt;
  saved_step_ = step_;
  phase_ = Phase::kNone;
  return acknowledge(std::exchange(committed_, std::nullopt));
}

void RunSaver::commit(const ManifestFiles& own) {
  const std::vector<std::string> all = ranks_->exchange(to_text(own));
  if (!is_first_) return;
  ManifestFiles written;
  if (!is_best_)
    for (const std::string& files : all) written.merge(parse_manifest_files(files));
  const auto max_shard_bytes = static_cast<uint64_t>(config_.output.max_shard_gb * kBytesPerGb);
  const bool is_plain = is_best_;
  saver_.begin_commit(written, is_plain ? std::string() : mesh_, retention_of(config_),
                      [is_plain, max_shard_bytes](const auto& directory, FileSystem& files) {
                        if (is_plain) make_plain(directory, max_shard_bytes, files);
                      });
}

// Ranks wait for each other only for a limited time, and a save may take longer, so they ask together until it has
// ended.
std::optional<std::string> RunSaver::wait() {
  if (ranks_ == nullptr) return acknowledge(saver_.wait());
  constexpr std::chrono::milliseconds kPause{20};
  std::optional<std::string> saved;
  while (is_writing()) {
    saved = poll();
    if (is_writing()) std::this_thread::sleep_for(kPause);
  }
  return saved;
}

std::optional<std::string> RunSaver::acknowledge(const std::optional<SavedCheckpoint>& saved) {
  if (!saved) return std::nullopt;
  phase_ = Phase::kNone;
  saved_step_ = saved->step;
  saved_directory_ = saved->directory;
  ++made_.count;
  made_.bytes = saved->bytes;
  made_.writing_seconds = saved->seconds;
  return str("saved {}: {}, written in {:.2f} s", saved->directory.string(), human_bytes(saved->bytes), saved->seconds);
}

}  // namespace stepc::train
