// GpuProgram: which thread of a GPU does what of a LoopProgram, as plain data: the CUDA text is printed from it and an
// interpreter runs it. A phase becomes a kernel, and those that do not wait for each other are launched together. Its
// items go to teams of threads, and the loops inside an item to the lanes of its team; a phase without sums is one loop
// over all of its elements, whose lanes are the grid's threads. Each lane takes `width` elements in a row, so that a
// load or a store of them is one of up to 16 bytes.
//
//   kernel 0: 4096 teams of 128 lanes, width 8, 4096 blocks of 128, shared 32 bytes
//     h0 = b0[i0*2048 + i1], 16 in registers
//     compute v0 to v5
//     lanes i1 of 2048, turns 2 unrolled: v6 to v12; once v7; wide v6
//     shuffle v4 over 32
//     put v4 at 0
//     barrier
//     tree v4 of 4 at 0
//     ...
//
// Sums are trees whose form follows from the mapping alone, so the bits are the same at every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loops/loop_program.h"
#include "loops/lower/lower.h"

namespace stepc {

// What the mapping asks of a GPU; the default: an H100.
struct GpuShape {
  int64_t multiprocessors = 132;
  int64_t shared_bytes = 232448;  // that one block may have
};
LoopLimits loop_limits(const GpuShape& gpu);  // for lower()

// Elements that a lane keeps from one loop over its row to the next.
struct GpuHeld {
  enum class Place : uint8_t { kRegisters, kShared };
  Place place = Place::kRegisters;
  uint32_t buffer = 0;
  int64_t count = 1;        // elements: of a lane in registers, of a row in shared memory
  int64_t shared_byte = 0;  // kShared
  Affine index;             // which elements of the buffer these are
  bool operator==(const GpuHeld&) const = default;
};

struct GpuStep {
  enum class Kind : uint8_t {
    kCompute,    // every lane runs instructions [first, last); lane 0 alone stores
    kSerial,     // every lane runs the loop of instruction `first`, up to its kSerialEnd
    kSerialEnd,  //
    kLanes,      // the loops `loops` around instructions [first, last), their turns spread over the lanes
    kFlush,      // the lanes of such loops store what they hold in `held`
    kShuffle,    // accumulator `first` over `count` neighbours in a warp: all of them get the value
    kPut,        // accumulator `first` to shared memory: of each warp, or of each lane of teams that are interleaved
    kBarrier,    // of the block
    kTree,       // accumulator `first`: all that was put, combined; every lane of the team gets the value
  };
  Kind kind = Kind::kCompute;
  uint32_t first = 0, last = 0;
  std::vector<uint32_t> loops = {};  // outer first
  int64_t extent = 1;                // turns of all of them; of a chunk, of one
  int64_t turns = 1;                 // of a lane, at most
  bool unrolled = false;             // what is held in registers is known by turn
  uint32_t held = 0;
  int64_t count = 1;
  int64_t shared_byte = 0;
  bool operator==(const GpuStep&) const = default;
};

// How an instruction of a kLanes step runs.
enum class GpuMode : uint8_t {
  kEach,  // for each element of a lane
  kOnce,  // for all `width` of them at once: the value is the same
  kWide,  // as one access of `width` elements
};

struct GpuKernel {
  bool over_grid = false;  // one team, whose lanes are the threads of the grid
  int64_t teams = 1;
  int64_t lanes = 1;         // of a team
  bool interleaved = false;  // a block is 32 teams, whose lanes stand 32 threads apart; else lanes are neighbours
  int64_t width = 1;
  int64_t block = 32;  // threads
  int64_t blocks = 1;
  int64_t shared_bytes = 0;
  std::vector<GpuHeld> held;
  std::vector<int32_t> held_of;  // by instruction: what it reads or writes instead of memory; -1: memory
  // By instruction: whether a load brings what it reads into what is held.
  std::vector<uint8_t> fills;
  std::vector<GpuMode> modes;  // by instruction
  std::vector<GpuStep> steps;
  bool operator==(const GpuKernel&) const = default;

  [[nodiscard]] int64_t teams_a_block() const { return over_grid ? 1 : block / lanes; }
  [[nodiscard]] bool synchronises() const;
};

// Kernels of a row that do not wait for each other are launched as one: its blocks are those of the first kernel, then
// those of the second, and so on.
struct GpuLaunch {
  size_t first = 0, kernels = 1;
  int64_t block = 32;  // threads
  int64_t blocks = 1;
  int64_t shared_bytes = 0;
  bool alone = false;  // each block has a multiprocessor: fewer registers than the most would make room for nothing
  bool operator==(const GpuLaunch&) const = default;
};

struct GpuProgram {
  LoopProgram loops;  // `in_place` names only what the lanes too read before they write
  std::vector<GpuKernel> kernels;
  std::vector<GpuLaunch> launches;
  bool operator==(const GpuProgram&) const = default;

  [[nodiscard]] bool synchronises(const GpuLaunch& launch) const;
};

// A group's loops for such a GPU, with the pairs of buffers that may be one piece of memory when they are mapped.
LoopProgram lower_for_gpu(const Graph& group, const GpuShape& gpu);

// Of a program after expand_math(). Buffers must be aligned to 16 bytes, scratch memory to 64.
GpuProgram map_to_gpu(LoopProgram program, const GpuShape& gpu);
std::string to_text(const GpuProgram& program);

}  // namespace stepc
