// The output directory of one run, locked for this process:
//
//   .lock               held with flock while a run writes here; holds what the launcher calls the run, and a name that
//                       no other run has: that of its snapshots in memory (run_snapshots.h)
//   metrics.jsonl, events.out.tfevents.stepc
//   report.html         of the finished run
//   logs/rank-0.log     and on: what the ranks of `stepc train --ranks` said
//   logs/rank-0.flight.json    and on: what they did last in an attempt that failed (comm/watch/flight_file.h)
//   checkpoint-000200/  see checkpoint/checkpoint.h
//   model/              the finished model; its presence says that the run is complete
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/checkpoint.h"

namespace stepc::train {

// An exclusive lock on a file, held until the object or the process ends, however it ends.
class FileLock {
 public:
  // Throws UserError when the file cannot be made or another process holds the lock.
  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // What the holder before has left in the file; and what this one leaves.
  struct Left {
    std::string launch, run;  // a line each
  };
  [[nodiscard]] Left left() const;
  void leave(const Left& lines) const;

 private:
  int descriptor_ = -1;
};

// Makes the directory of the ranks' logs in that of a run. UserError that begins with output.dir where it cannot.
std::filesystem::path make_log_directory(const std::filesystem::path& run);

class RunDirectory {
 public:
  // Creates the directory where needed and takes the lock. Throws UserError when another process has it, when `resume`
  // is false and an earlier run left its work here, and when the run would replace what it does not know to be its own
  // or cannot make again: foreign directories with the names of its checkpoints, checkpoints of which none is whole, a
  // model without a checkpoint. `launch`: what the launcher calls the run, empty for nothing: what the same one left
  // here is resumed.
  RunDirectory(const std::filesystem::path& path, bool resume, const std::string& launch = {});
  // Another process's, which has made it, holds the lock and `found` this checkpoint whole; empty: none. `run`: as it
  // has it.
  RunDirectory(std::filesystem::path path, const std::string& found, std::string run);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path report() const { return path_ / "report.html"; }
  [[nodiscard]] std::filesystem::path model() const { return path_ / "model"; }
  [[nodiscard]] bool finished() const;
  // The newest valid checkpoint as it was when the directory was opened.
  [[nodiscard]] const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }
  // What the run goes on from: that, or one that is newer and somewhere else.
  [[nodiscard]] const std::optional<Checkpoint>& start() const { return newer_ ? newer_ : checkpoint_; }
  void start_from(Checkpoint newer) { newer_ = std::move(newer); }
  // The run's name, which it keeps when it is resumed.
  [[nodiscard]] const std::string& run() const { return run_; }

 private:
  void leave_name(const std::string& launch, const std::string& run);
  void refuse_foreign_names(const CheckpointSearch& search) const;

  std::filesystem::path path_;
  std::unique_ptr<FileLock> lock_;
  std::optional<Checkpoint> checkpoint_, newer_;
  std::string run_;
};

}  // namespace stepc::train
