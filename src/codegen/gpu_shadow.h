// What an interpreter of mapped kernels notes beside memory: who touched an element last, and the sectors that the
// threads of a warp touch at once. Private to codegen/.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace stepc {

// A thread at a time: barriers of a block end an epoch; epochs of different blocks differ.
struct ThreadTime {
  int64_t thread = -1, block = -1, epoch = -1;
};

class ShadowElements {
 public:
  explicit ShadowElements(size_t count) : cells_(count) {}

  // The thread that `now` has a race with at the element; -1: none.
  int64_t read(size_t at, const ThreadTime& now);
  int64_t write(size_t at, const ThreadTime& now);
  [[nodiscard]] bool is_written(size_t at) const { return cells_[at].is_written; }

 private:
  struct Cell {
    ThreadTime writer, reader;
    bool is_read_by_many = false, is_read_by_blocks = false, is_written = false;
  };
  static int64_t conflict(const ThreadTime& other, const ThreadTime& now);
  std::vector<Cell> cells_;
};

// An instruction's accesses by the threads of a warp: the first of each thread belong together, then the second ones.
class WarpAccesses {
 public:
  void begin_thread() { ordinals_.clear(); }
  void add(uint32_t instruction, int64_t byte, int64_t bytes) {
    accesses_[{instruction, ordinals_[instruction]++}].emplace_back(byte, bytes);
  }
  struct Sectors {
    int64_t touched = 0, least = 0;
  };
  Sectors end_warp();  // and forgets them

 private:
  std::map<uint32_t, int64_t> ordinals_;
  std::map<std::pair<uint32_t, int64_t>, std::vector<std::pair<int64_t, int64_t>>> accesses_;  // byte, bytes
};

}  // namespace stepc
