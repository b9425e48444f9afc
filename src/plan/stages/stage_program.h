// StageProgram: the calls of each rank of a pipeline in a step: it runs a function of its stage on a micro-batch, sends
// values that others need, and receives values. A value has a slot from the call that makes it to its last read. Plain
// data; functions are planned and compiled once, for any number of micro-batches.
//
//   rank 0: run forward 0, micro-batch 0 -> slot 0 = v0
//   rank 0: send to 1, message 0: slot 0 = v0
//   rank 0: receive from 1, message 8 -> slot 1 = v1
//   rank 0: run backward 0, micro-batch 0: slot 0 = v0, slot 1 = v1; frees 0, 1
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "passes/stages/cut_stages.h"
#include "plan/stages/stage_order.h"

namespace stepc {

// A value of one micro-batch, and its slot on a rank.
struct SlotValue {
  uint32_t slot = 0, value = 0;
  bool operator==(const SlotValue&) const = default;
};

struct StageCall {
  // kSend returns immediately; its slots are in use until kSent of the same message.
  enum class Kind : uint8_t { kRun, kSend, kSent, kReceive };
  Kind kind = Kind::kRun;
  uint32_t function = 0;    // that runs, or that has made the sent values
  int64_t micro_batch = 0;  // 0 for an update
  int64_t peer = 0;         // rank along pp
  uint32_t message = 0;     // the number of its first tensor; the others have the next numbers
  std::vector<SlotValue> reads = {}, writes = {};
  std::vector<uint32_t> frees = {};  // slots that no later call reads
  bool operator==(const StageCall&) const = default;
};

struct StageProgram {
  // The parts of a StageCut's function that calls refer to.
  struct Function {
    std::string name;
    int64_t rank = 0;  // along pp
    std::vector<uint32_t> takes, gives;
    bool operator==(const Function&) const = default;
  };
  int64_t micro_batches = 1;
  std::vector<Function> functions;
  std::vector<std::vector<StageCall>> calls;  // by rank
  std::vector<uint32_t> slots;                // their number by rank
  bool operator==(const StageProgram&) const = default;

  [[nodiscard]] int64_t ranks() const { return static_cast<int64_t>(calls.size()); }
};

// The program for micro-batches in that order, or for an update: each rank runs the functions of its stage in their
// order. Throws UserError if ranks would wait for each other forever, and says what they wait for.
StageProgram make_program(const StageCut& cut, const StageOrder& order);
StageProgram make_program(const StageCut& update, int64_t ranks);

// Throws InternalError that names the first broken promise: every function runs once for each micro-batch on its rank;
// a slot holds the value that is read from it, and is not overwritten before its last read; every message is sent once
// and received once; no rank waits forever.
void verify(const StageProgram& program);

// Goes through the calls of all ranks: calls run(rank, call) for each rank's next call, as often as it returns true.
// Returns how many calls of each rank have run when no rank goes on.
std::vector<size_t> run_in_turns(const StageProgram& program,
                                 const std::function<bool(size_t rank, const StageCall& call)>& run);
// Describes the first rank that waits forever; empty: all calls end.
std::string find_deadlock(const StageProgram& program);
// Throws UserError if ranks wait for each other forever, and says what they wait for.
void check_ends(const StageProgram& program);

// One line for each call.
std::string to_text(const StageProgram& program);
std::string hash_of(const StageProgram& program);

// The most bytes of the values in a rank's slots at one time. `bytes`: by value, its size on a rank.
uint64_t peak_slot_bytes(const StageProgram& program, int64_t rank, const std::vector<uint64_t>& bytes);

}  // namespace stepc
