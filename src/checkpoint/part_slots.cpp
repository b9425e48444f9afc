#include "checkpoint/part_slots.h"

namespace stepc {

PartSlots::PartSlots(SnapshotStore& store, int64_t rank, const SlotFiles::Copy& copy)
    : store_(store), rank_(rank), slots_{{{{}, SlotFiles(copy)}, {{}, SlotFiles(copy)}}} {}

const std::filesystem::path& PartSlots::begin(const std::string& snapshot) {
  open_ = 1 - newest_;
  Slot& slot = slots_.at(open_);
  slot.directory =
      slot.directory.empty() ? store_.make_part(snapshot, rank_) : store_.move_part(slot.directory, snapshot, rank_);
  slot.snapshot = snapshot;
  slot.files.begin(slot.directory);
  return slot.directory;
}

void PartSlots::finish(const Manifest& manifest) {
  Slot& slot = slots_.at(open_);
  slot.files.end();
  store_.finish_part(slot.snapshot, rank_, manifest);
  newest_ = open_;
}

void PartSlots::make_other() {
  Slot& other = slots_.at(1 - newest_);
  if (!other.directory.empty()) return;
  other.directory = store_.make_spare(rank_);
  other.files.begin(other.directory);
  other.files.resemble(slots_.at(newest_).files);
}

}  // namespace stepc
