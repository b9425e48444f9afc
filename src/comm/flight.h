// Flight: the last instructions of a rank, for use when the rank can no longer be asked. A ring of numbers that the
// executor's loop writes and a watchdog's thread reads: two plain stores for each instruction, no clock, no allocation.
// Each rank has one (Ranks::flight()). The programs that have run give the meaning of its numbers, as long as they
// live.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stepc {

// An instruction in words.
struct FlightPlace {
  std::string op = {};      // "all_gather", "generated"
  std::string module = {};  // 'model.layers.0.mlp'
  std::string phase = {};   // "forward"
  std::string group = {};   // of a collective: the axes along which it communicates: "dp_shard"
  bool operator==(const FlightPlace&) const = default;
};

class Flight {
 public:
  static constexpr uint64_t kKept = 1024;  // a power of two; a concurrent reader may rely on 1,000

  // Describes an instruction of a program; nullopt: the program is gone. Called under a lock, from any thread.
  using Describe = std::function<std::optional<FlightPlace>(uint32_t instruction)>;
  // Adds a program and returns its number.
  uint32_t add_program(Describe describe);

  // Notes that the rank begins an instruction. Only one thread calls it.
  void note(uint32_t program, uint32_t instruction) noexcept {
    const uint64_t at = count_.load(std::memory_order_relaxed);
    ring_[at % kKept].store(uint64_t{program} << 32 | instruction, std::memory_order_relaxed);
    count_.store(at + 1, std::memory_order_release);
  }
  // note_step() does the same for a step of the run; enter() for what the rank does beside instructions, a text with
  // static lifetime.
  void note_step(int64_t step) noexcept { note(kStep, static_cast<uint32_t>(step)); }
  // A rank should soon leave a place that `is_brief`.
  void enter(const char* what, bool is_brief) noexcept {
    at_.store(what, std::memory_order_relaxed);
    is_brief_.store(is_brief, std::memory_order_relaxed);
    entered_.fetch_add(1, std::memory_order_release);
  }

  [[nodiscard]] const char* at() const { return at_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_brief() const { return is_brief_.load(std::memory_order_relaxed); }
  // Grows with every note: as long as it does not, the rank has not moved.
  [[nodiscard]] uint64_t progress() const { return count() + entered_.load(std::memory_order_acquire); }
  [[nodiscard]] uint64_t count() const { return count_.load(std::memory_order_acquire); }

  struct Noted {
    int64_t step = -1;         // the beginning of that step; otherwise
    uint32_t program = 0;      // of this program
    uint32_t instruction = 0;  // this instruction
    bool operator==(const Noted&) const = default;
  };
  // The last notes, the oldest first, at most `most`.
  [[nodiscard]] std::vector<Noted> last(uint64_t most = 1000) const;
  [[nodiscard]] std::optional<FlightPlace> place_of(const Noted& noted) const;

 private:
  static constexpr uint32_t kStep = UINT32_MAX;

  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> entered_{0};
  std::atomic<const char*> at_{"its beginning"};
  std::atomic<bool> is_brief_{false};
  std::array<std::atomic<uint64_t>, kKept> ring_{};
  mutable std::mutex mutex_;  // guards only the programs
  std::vector<Describe> programs_;
};

}  // namespace stepc
