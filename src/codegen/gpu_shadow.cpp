#include "codegen/gpu_shadow.h"

#include <set>

namespace stepc {

namespace {
constexpr int64_t kSectorBytes = 32;
}  // namespace

int64_t ShadowElements::conflict(const ThreadTime& other, const ThreadTime& now) {
  const bool are_rivals = other.thread >= 0 && other.thread != now.thread;
  return are_rivals && (other.epoch == now.epoch || other.block != now.block) ? other.thread : -1;
}

int64_t ShadowElements::read(size_t at, const ThreadTime& now) {
  Cell& cell = cells_[at];
  const ThreadTime& last = cell.reader;
  const bool joins = last.thread >= 0 && last.thread != now.thread && last.epoch == now.epoch;
  if (last.thread >= 0 && last.block != now.block) cell.is_read_by_blocks = true;
  cell.is_read_by_many = last.epoch == now.epoch && (cell.is_read_by_many || joins);
  cell.reader = now;
  return conflict(cell.writer, now);
}

int64_t ShadowElements::write(size_t at, const ThreadTime& now) {
  Cell& cell = cells_[at];
  int64_t rival = conflict(cell.writer, now);
  if (rival < 0) rival = conflict(cell.reader, now);
  const bool others_read = cell.is_read_by_blocks || (cell.is_read_by_many && cell.reader.epoch == now.epoch);
  if (rival < 0 && others_read) rival = cell.reader.thread;
  cell.writer = now;
  cell.is_written = true;
  return rival;
}

WarpAccesses::Sectors WarpAccesses::end_warp() {
  Sectors out;
  for (const auto& [key, ranges] : accesses_) {
    std::set<int64_t> sectors;
    int64_t asked = 0;
    for (const auto& [byte, bytes] : ranges) {
      for (int64_t one = byte / kSectorBytes; one <= (byte + bytes - 1) / kSectorBytes; ++one) sectors.insert(one);
      asked += bytes;
    }
    out.touched += static_cast<int64_t>(sectors.size());
    out.least += (asked + kSectorBytes - 1) / kSectorBytes;
  }
  accesses_.clear();
  return out;
}

}  // namespace stepc
