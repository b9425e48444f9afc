// A dry run of a Schedule: what it writes to the program's tensors is shown and undone, piece by piece. The old bytes
// of a buffer of the program are kept from the first instruction that writes to the buffer to the last one that uses
// it, so no copy of everything that a step changes exists at one time. If one instruction makes new contents of large
// buffers, as updates do, only the bytes of a chunk of their elements are kept. Bytes that are kept longer lie in a
// free part of the arena.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/bind/bound_operands.h"
#include "schedule/schedule.h"

namespace stepc {

class BoundKernel;
struct RunState;

// Receives the number of the schedule's input and the tensor as the step leaves it: its elements from `first` on, as
// one dimension if they are not all. Earlier elements were shown before. May not allocate through ATen.
using ShowWritten = std::function<void(size_t input, const at::Tensor& left, int64_t first)>;

class DryRun {
 public:
  // All arguments must outlive this object; the program's tensors are bound. `kernels`: by instruction; nullptr without
  // a kernel.
  DryRun(const Schedule& schedule, const BoundOperands& operands, const std::vector<const BoundKernel*>& kernels,
         ShowWritten show);
  // Restores what is left, without showing it.
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  void before(size_t instruction) { before(instruction, instruction + 1); }
  void run(size_t instruction, BoundKernel& kernel, RunState& state);
  void after(size_t instruction) { after(instruction, instruction + 1); }
  // Of instructions that run at one launch: what they replace of a device's is kept in the host's memory.
  void before(size_t first, size_t end);
  void after(size_t first, size_t end);

 private:
  struct Kept {
    std::vector<size_t> inputs;   // inputs that lie in the buffer and are written
    std::byte* memory = nullptr;  // of the part that the schedule's operands use
    size_t bytes = 0;
    size_t in_arena = SIZE_MAX;  // where it is kept, if there is room
    std::unique_ptr<std::byte[]> elsewhere;
    std::byte* before = nullptr;
    // Of a device's memory instead: the part itself, and while it is kept, its copy.
    at::Tensor on_device = {}, copy = {};
  };
  // A result in the place of an input, kept a chunk at a time.
  struct Chunked {
    size_t write, input;
  };
  [[nodiscard]] bool is_chunked(size_t buffer, size_t instruction, const BoundKernel* kernel, size_t& write) const;
  void find_room();
  static void put_back(Kept& kept);
  void keep(Kept& kept, bool is_alone) const;
  void keep_of_device(Kept& kept, bool on_host) const;
  void run_chunk(size_t instruction, BoundKernel& kernel, RunState& state, int64_t chunk);

  const Schedule& schedule_;
  const BoundOperands& operands_;
  ShowWritten show_;
  std::vector<Kept> kept_;                          // by buffer
  std::vector<std::vector<size_t>> begins_, ends_;  // buffers, by instruction
  std::vector<std::vector<Chunked>> chunked_;       // by instruction
  std::vector<std::byte> before_chunk_;             // of all results that are kept by chunks
};

}  // namespace stepc
