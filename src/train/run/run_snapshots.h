// RunSnapshots: copies of a run's state in memory that outlives its ranks. Each rank puts what is its own to save into
// its machine's memory, as files of a checkpoint, and sends them to other machines; a run that is started again goes on
// from the newest step that all parts can be had of. Training stands still for one copy of the state, into one of the
// two places that a part has; a thread beside it hashes and sends. Shares the ranks; all of them make every call
// together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/part_slots.h"
#include "checkpoint/snapshot_store.h"
#include "comm/ranks.h"
#include "train/run/part_messages.h"

namespace stepc::train {

// Where the ranks of a run are: those with one number share memory.
class Machines {
 public:
  explicit Machines(const std::vector<std::string>& place_of_rank);
  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(ranks_.size()); }
  [[nodiscard]] int64_t of(int64_t rank) const { return machine_of_.at(static_cast<size_t>(rank)); }
  // The ranks there, rising.
  [[nodiscard]] const std::vector<int64_t>& ranks(int64_t machine) const {
    return ranks_.at(static_cast<size_t>(machine));
  }
  // The rank that holds the copy of what `rank` has, on another machine, as far around the ring as copies lie apart.
  // `copy` is below `copies`, and these below count().
  [[nodiscard]] int64_t holder(int64_t rank, int64_t copy, int64_t copies) const;

 private:
  std::vector<int64_t> machine_of_;
  std::vector<std::vector<int64_t>> ranks_;
};

class RunSnapshots {
 public:
  // `ranks`: none: this process alone. `run`: its name. `memory`: a directory of this machine's memory. UserError where
  // that is no place for them.
  RunSnapshots(std::shared_ptr<Ranks> ranks, const std::filesystem::path& output, std::string run,
               std::filesystem::path memory, int64_t copies);

  // The newest snapshot that is there whole, of step `least` or later, as a checkpoint on this machine. What lacks here
  // is fetched from the others.
  struct Found {
    std::optional<Checkpoint> checkpoint;
    std::string from;  // in words: "all of 4 parts were here"; or why a snapshot is not taken; empty: none is there
  };
  Found find(int64_t least);

  // Of memory, for the parts that a rank writes and holds for others, where it saves `saved` bytes.
  [[nodiscard]] uint64_t bytes_for(uint64_t saved) const;
  // UserError, with what is missing, where the snapshots of ranks that save `saved` bytes each do not fit.
  void check_room(uint64_t saved, int64_t every);
  // `write`: this rank's files of a checkpoint, before this returns. The rest is done beside what follows. False: the
  // one before is still under way on some rank, and this one is left out. What went wrong with that is thrown here.
  bool take(const TrainerState& state, const std::string& mesh,
            const std::function<void(const std::filesystem::path& directory, FileSystem& files)>& write);
  // Until none is under way.
  void wait();
  // The run goes on from what is saved elsewhere.
  void remove();

  struct Made {
    int64_t count = 0, left_out = 0;
    uint64_t bytes = 0;         // of the last one, this rank's own
    double seconds = 0;         // that training stood still for all of them
    double beside_seconds = 0;  // of all that are whole, on the thread beside it
  };
  [[nodiscard]] const Made& made() const { return made_; }

 private:
  struct Known;
  struct Transfer;
  [[nodiscard]] int64_t rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  [[nodiscard]] bool is_first_here() const { return machines_.ranks(machines_.of(rank())).front() == rank(); }
  std::vector<std::string> exchange(const std::string& mine);
  void barrier();
  // What goes wrong on one rank ends it on all, at the next exchange.
  void together(const std::function<void()>& work);
  [[nodiscard]] std::string describe_own() const;
  size_t fetch(const Known& known);
  [[nodiscard]] std::vector<Transfer> copies() const;
  bool settle();
  // What is done beside the training: of this rank's own part, and of those that it holds.
  struct Done {
    uint64_t bytes = 0;
    double seconds = 0;
  };
  Done finish(const std::string& snapshot, int64_t step, const std::string& mesh);

  std::shared_ptr<Ranks> ranks_;
  std::string run_;
  std::filesystem::path memory_;
  SnapshotStore store_;
  Machines machines_;
  int64_t copies_;
  uint64_t attempt_ = 0;
  std::string found_;  // that the run went on from, as long as it is kept
  Made made_;
  PartSlots own_;
  std::map<int64_t, PartSlots> held_;       // by whose parts
  std::unique_ptr<PartMessages> messages_;  // none: there is one machine
  std::string under_way_;                   // the snapshot that the thread is at
  std::future<Done> done_;                  // last: its thread uses the above until it is joined
};

// A row of the table at the end of a run.
std::string to_text(const RunSnapshots::Made& made);

}  // namespace stepc::train
