// What a run looks at before its first step: the model to begin from, the directory, the data, where it speaks.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "comm/launch.h"
#include "comm/ranks.h"
#include "data/corpus.h"
#include "passes/partition/strategy.h"
#include "train/config/run_config.h"
#include "train/run/run_directory.h"
#include "train/run/run_snapshots.h"
#include "train/step/learner.h"

namespace stepc::train {

// On one terminal rank 0 alone speaks. A launcher of ours gives the others files of their own; elsewhere they take
// them.
using Output = std::unique_ptr<std::FILE, void (*)(std::FILE*)>;
Output output_of(const Launch& launch, const std::string& run);

// Of the newest checkpoint, where `directory` has one; else of model.path. `ranks`: none: this process trains alone.
// `device`: that of a rank.
std::unique_ptr<Learner> make_learner(const RunConfig& config, const RunDirectory& directory, const Strategy& strategy,
                                      const std::shared_ptr<Ranks>& ranks, const at::Device& device);

// How a run goes on from what is there.
struct Continuation {
  bool resumes = false;     // asked for, or its launcher has started it again
  std::string launch = {};  // what the launcher calls the run
};

// Of several ranks the first makes it and looks whether its checkpoints are whole; they have the one that it found.
RunDirectory open_run_directory(const std::filesystem::path& path, const Continuation& from, Ranks* ranks);

// Those that the config asks for, in this machine's memory: /dev/shm, or what STEPC_SNAPSHOT_DIR says.
std::unique_ptr<RunSnapshots> make_snapshots(const RunConfig& config, const RunDirectory& directory,
                                             const std::shared_ptr<Ranks>& ranks);

// How far the run that is there has come.
std::string progress_text(const RunDirectory& directory);

// UserError for data in which nothing can be learned: chats in which no assistant answers, say.
void check_labels(const RunConfig& config, const Corpus& corpus);

// UserError where no profile could be written. Without a plan there are no instructions, and a missing directory would
// be found only when there are some.
void check_profile(const std::filesystem::path& profile, const RunConfig& config);

}  // namespace stepc::train
