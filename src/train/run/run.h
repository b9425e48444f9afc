// Run: one training run of this process, from what is there at its start to the finished model. trainer.h makes it of a
// config; run_start.h has what its constructor looks at first. Owns the learner, the data, the terminal and the files
// of the run; shares the ranks.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_system.h"
#include "comm/ranks.h"
#include "data/corpus.h"
#include "engine/prediction.h"
#include "passes/partition/strategy.h"
#include "train/config/run_config.h"
#include "train/report/log_lines.h"
#include "train/report/metrics.h"
#include "train/report/progress.h"
#include "train/report/rank_rows.h"
#include "train/report/report.h"
#include "train/report/run_tables.h"
#include "train/report/slow_ranks.h"
#include "train/report/step_times.h"
#include "train/run/memory_need.h"
#include "train/run/run_directory.h"
#include "train/run/run_saver.h"
#include "train/run/run_snapshots.h"
#include "train/run/run_start.h"
#include "train/step/batches.h"
#include "train/step/learner.h"

namespace stepc::train {

// What a run that has lost ranks leaves to the next one of its process.
struct LeftBehind {
  std::string run;  // its name
  int64_t step = 0;
  std::string line;  // of metrics.jsonl for that step; empty: it has none
  KeptState kept;
};

class Run {
 public:
  // `ranks`: this process and those that it trains with; none: it trains alone. `output`: where it says what happens.
  // `left`: by the run before in this process, if there was one.
  Run(RunConfig config, const Launch& launch, std::shared_ptr<Ranks> ranks, Output output, const Continuation& from,
      FileSystem& files, std::filesystem::path profile, const LeftBehind* left = nullptr);
  // While StopSignals are taken.
  int run();
  // When run() has thrown. nullopt: its tensors are no step's.
  std::optional<LeftBehind> leave();

 private:
  static constexpr const char* kHeldOut = "held_out_nats_per_byte";  // of metrics.jsonl

  // What the config says, or, where it says "auto", what is chosen now; then the config has it.
  Strategy choose(const Launch& launch);
  // Looks in memory for what is as new as the newest checkpoint; where it is from, in words, or nothing.
  std::string look_for_snapshot(bool resumes);
  void resume_from(const Checkpoint& checkpoint);
  // Goes on from what ranks have kept, where that is a whole state and no older than what is saved.
  bool carry_on(const LeftBehind* left);
  void read_batch();
  void take_step();
  void follow_step();
  void show_step(const TrainedStep& result, double lr, double seconds);
  // `kept_bytes`: of the process are those of tensors that a run before has left.
  void plan_step(uint64_t kept_bytes);
  void compile();
  // In words, of all that are planned before the run.
  [[nodiscard]] std::string step_of(int64_t seq) const;
  void keep_profile();
  std::string first_nonfinite();
  // nullopt where nothing is held out.
  std::optional<double> evaluate_held_out();
  bool is_best();
  // What this rank is at from now on; of `is_brief` places it should soon be out.
  void enter(const char* what, bool is_brief = false);
  // Ends the run where ranks do not hold alike what they should.
  void check_replicas();
  TrainerState state() const;
  void save_beside_training(bool is_best);
  void take_snapshot();
  void save_now();
  void wait_for_save();
  void note(const std::optional<std::string>& saved);
  // Does what one rank alone does. What goes wrong there ends all ranks at agree().
  void alone(const std::function<void()>& work);
  // The largest that a rank gives, where all are well.
  int64_t agree(int64_t mine);
  // The signal that came to any rank.
  int received_signal();
  std::vector<RankRow> rank_rows();
  // Empty where none is wanted.
  std::string sample_text();
  int stop(int signal);
  void finish();
  Report report_of(const EndOfRun& end, const std::vector<RankRow>& rows) const;

  Clock::time_point began_ = Clock::now();
  FileSystem& files_;
  RunConfig config_;
  at::Device device_;
  std::shared_ptr<Ranks> ranks_;
  bool is_first_;    // of the ranks: it shows what happens, and writes files
  bool is_guarded_;  // they have a secret, and are on several machines
  Output output_;
  Progress progress_;
  LogLines log_lines_;
  RunDirectory directory_;
  std::unique_ptr<RunSnapshots> snapshots_;  // none are kept
  std::string resumed_from_;                 // of a snapshot, in words
  std::string choice_;                       // why the ranks are spread so, where that was searched for
  Strategy strategy_;
  std::unique_ptr<Learner> learner_;
  Corpus corpus_;
  TrainBatches batches_;
  const Batch* batch_ = nullptr;  // of the next step
  RunNumbers numbers_;
  std::optional<Metrics> metrics_;
  StepTimes step_times_;
  int64_t step_ = 0;                // steps done
  std::optional<double> held_out_;  // nats per byte after this step
  TimeSpent spent_;
  Traffic step_traffic_;  // of all steps of this process
  double computed_ = 0;   // seconds of the last step, without what it waited for other ranks
  std::optional<SlowRanks> slow_ranks_;
  int64_t steps_taken_ = 0;
  int64_t checked_step_ = -1;             // after which replicas were compared last
  bool is_carried_on_ = false;            // what was to follow its last step may not have
  std::string last_line_;                 // of metrics.jsonl for the last step, where ranks may be replaced
  bool is_undone_ = false;                // the tensors are not those of step_
  std::string failure_;                   // what this rank could not do, until the others are told
  PlannedNeed planned_;                   // of fast mode
  std::map<int64_t, double> planned_in_;  // seconds, by the rows' length
  std::set<int64_t> uncompared_;          // lengths of rows whose first step is compared as it runs
  std::optional<Prediction> prediction_;  // once there is a plan
  uint64_t loaded_bytes_ = 0;             // resident before the first step
  std::filesystem::path profile_;         // still to be written; empty: none, or not any more
  std::optional<RunSaver> saver_;         // reads the learner
};

}  // namespace stepc::train
