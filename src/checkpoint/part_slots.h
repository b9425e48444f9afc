// PartSlots: the two places that a rank's part of snapshots has in a SnapshotStore: the newest that counts, and the one
// that is written. A place is taken again, memory and all, so there are never more; whoever is killed while it writes
// leaves the other. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/slot_files.h"
#include "checkpoint/snapshot_store.h"

namespace stepc {

class PartSlots {
 public:
  static constexpr uint64_t kSlots = 2;

  // `rank`: whose part. The store must outlive this.
  PartSlots(SnapshotStore& store, int64_t rank, const SlotFiles::Copy& copy = {});

  // The place that is not the newest: what it had counts no more. Its directory, and what writes there.
  const std::filesystem::path& begin(const std::string& snapshot);
  [[nodiscard]] const std::filesystem::path& directory() const { return slots_.at(open_).directory; }
  [[nodiscard]] SlotFiles& files() { return slots_.at(open_).files; }
  // All files have been written and are what `manifest` says: from now on it counts.
  void finish(const Manifest& manifest);
  // Takes the other place's memory, as much as the newest has, where it has none yet: so that no begin() has to wait.
  void make_other();

 private:
  struct Slot {
    std::filesystem::path directory;  // empty: not made yet
    SlotFiles files;
    std::string snapshot = {};
  };
  SnapshotStore& store_;
  int64_t rank_;
  std::array<Slot, kSlots> slots_;
  size_t open_ = 0, newest_ = 1;
};

}  // namespace stepc
