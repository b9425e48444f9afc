// SnapshotStore: what the ranks of a run on one machine keep of it in memory that outlives them, as files of a memory
// file system. A snapshot has a part of each rank, which is whole once its manifest is there; the parts of all ranks
// together are a checkpoint as any other. Torch-free; trusts nothing that it finds.
//
//   /dev/shm/stepc-1000/5c1e70aa.../     of this user alone, of one output directory
//     run                                which run it is of
//     000000120-1a2b3c4d/                a snapshot after step 120, of one attempt of the run
//       rank-00002/                      of rank 1: shard-00002-*, and manifest.json
//       whole/                           all parts as one checkpoint, by hard links
//     spare-00002/                       memory for rank 1's next part (part_slots.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/slot_files.h"

namespace stepc {

class SnapshotStore {
 public:
  // One rank's part of a snapshot.
  struct Part {
    std::string snapshot;
    int64_t rank = 0;
    Manifest manifest;
  };

  // In `memory`, a directory of a memory file system, for what is run in `output`. UserError where what has the store's
  // name is not this user's own, or others may read it.
  // `files`: what writes there, and must outlive this; none: one of its own.
  SnapshotStore(const std::filesystem::path& memory, const std::filesystem::path& output, FileSystem* files = nullptr);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Which run's snapshots it holds; empty: none. claim() makes it the run's: those of another one are gone.
  [[nodiscard]] std::string run() const;
  void claim(const std::string& run);

  // How a snapshot is called, and the step that such a name says; -1: none is called so.
  static std::string name_of(int64_t step, uint64_t attempt);
  static int64_t step_of(const std::string& snapshot);

  // Where a rank's part lies. A new one is made, without what it had before.
  [[nodiscard]] std::filesystem::path part(const std::string& snapshot, int64_t rank) const;
  std::filesystem::path make_part(const std::string& snapshot, int64_t rank);
  // One in the stead of an older one or of a spare place, whose files it begins with. That counts no more.
  std::filesystem::path move_part(const std::filesystem::path& from, const std::string& snapshot, int64_t rank);
  std::filesystem::path make_spare(int64_t rank);
  // All files of the part are there: from now on it counts.
  void finish_part(const std::string& snapshot, int64_t rank, const Manifest& manifest);
  // Those that count; contents are not looked at. In order.
  [[nodiscard]] std::vector<Part> parts() const;
  // Whether its files are what its manifest says, byte by byte.
  [[nodiscard]] bool is_intact(const Part& part) const;
  // Makes one checkpoint of the parts of all ranks, which are all here; and where it lies.
  void assemble(const std::vector<Part>& parts);
  [[nodiscard]] std::filesystem::path whole(const std::string& snapshot) const;

  // Removes all snapshots but these; or one, if it is there.
  void keep(const std::vector<std::string>& snapshots) const;
  void forget(const std::string& snapshot) const;
  // Removes all that the run has here.
  void remove() const;
  // What else fits there, and what its snapshots take.
  [[nodiscard]] uint64_t free_bytes() const;
  [[nodiscard]] uint64_t taken_bytes() const;
  // What writes there.
  [[nodiscard]] FileSystem& files() { return files_; }

 private:
  UnsyncedFiles own_files_;
  FileSystem& files_;
  std::filesystem::path memory_, path_;
};

}  // namespace stepc
