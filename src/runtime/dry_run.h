// A dry run of a Schedule: what it writes to the program's tensors is shown and taken back, piece by piece. Of a buffer
// that the program owns the bytes are kept from the first instruction that writes to it to the last one that uses it,
// so no copy of all that a step changes is ever there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/bound_operands.h"
#include "schedule/schedule.h"

namespace stepc {

// The number of the schedule's input, and the tensor as the step leaves it. May not allocate through ATen.
using ShowWritten = std::function<void(size_t input, const at::Tensor& left)>;

class DryRun {
 public:
  // All must outlive this; the program's tensors are bound.
  DryRun(const Schedule& schedule, const BoundOperands& operands, ShowWritten show);
  // Puts back what is left, without showing it.
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  void before(size_t instruction);
  void after(size_t instruction);

 private:
  struct Kept {
    std::vector<size_t> inputs;   // that lie in the buffer and are written
    std::byte* memory = nullptr;  // of the part that the schedule's operands see
    size_t bytes = 0;
    std::unique_ptr<std::byte[]> before;
  };
  void put_back(Kept& kept);

  const Schedule& schedule_;
  const BoundOperands& operands_;
  ShowWritten show_;
  std::vector<Kept> kept_;                          // by buffer
  std::vector<std::vector<size_t>> begins_, ends_;  // buffers, by instruction
};

}  // namespace stepc
