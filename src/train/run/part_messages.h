// PartMessages: the files of ranks' parts of snapshots on their way from rank to rank, over connections of their own,
// so that a thread may send and receive them beside the training. Piece by piece: however large a part is, each piece
// has the time to come that every call of ranks has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/slot_files.h"
#include "comm/ranks.h"

namespace stepc::train {

class PartMessages {
 public:
  // All ranks make it together. Which of them send what to whom, they know: both sides make their calls in one order.
  explicit PartMessages(const Ranks& ranks);

  // What `files` says of the directory. Throws LostRank, as does the next.
  void send(const std::filesystem::path& directory, const ManifestFiles& files, int64_t to);
  // Into these files. UserError where they do not fit.
  ManifestFiles receive(SlotFiles& into, int64_t from);

 private:
  void send_bytes(std::span<const std::byte> bytes, int64_t to);
  void receive_bytes(std::span<std::byte> bytes, int64_t from);

  std::unique_ptr<RankGroup> group_;
  std::vector<int> sent_, received_;  // messages so far, to and from each rank
};

}  // namespace stepc::train
