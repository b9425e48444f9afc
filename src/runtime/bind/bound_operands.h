// The tensors of a run, one for each operand of a Schedule, by the kind of memory that they are in:
//
//   arena             made once for each arena
//   input, constant   made when the program's tensor is first seen or has moved; those of a batch let go after a run
//   own               made anew in every run, on memory from the system or on what a call returned
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/instruction_memory.h"
#include "schedule/schedule.h"

namespace stepc {

class BoundOperands {
 public:
  // `schedule` and `memory` outlive this.
  BoundOperands(const Schedule& schedule, InstructionMemory& memory);

  const at::Tensor& operator[](OperandId operand) const { return tensors_[operand.index()]; }
  // Its first element.
  void* data(OperandId operand) const { return data_[operand.index()]; }
  std::byte* arena() const { return arena_.host; }

  // Whether the program's tensors, one for each of the schedule's inputs, are what it was made for: element types,
  // sizes, strides, and which of them share memory. Returns why not, empty if they are. What comes at a pause, and what
  // is no tensor of the program's, is not looked at.
  std::string why_not(const std::vector<at::Tensor>& inputs);
  std::string why_not_incoming(const std::vector<at::Tensor>& incoming) const;

  // Binds the program's tensors and the arena for one run; lets go of what must not be held between runs.
  class Run {
   public:
    Run(BoundOperands& operands, const std::vector<at::Tensor>& inputs, const ArenaPlace& arena);
    ~Run();
    // What came at a pause, by the keys of the inputs that it is.
    void resume(const std::vector<at::Tensor>& incoming);
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    BoundOperands& operands_;
  };

  // Of an operand of an own buffer that has no memory yet: makes it.
  void make_own(OperandId operand);
  // A call has made `operand`: it is moved to where it belongs, unless it is there, or is memory of its own that may
  // stay what it is. `reads`: what the call was given, whose memory it may not be.
  void define(OperandId operand, const at::Tensor& made, const std::vector<OperandId>& reads);

  // The executor's own tensor of an input that is none of the program's.
  const at::Tensor& host_tensor(uint32_t input) const { return host_tensors_[input]; }

  // For the program: a window on an own buffer, or on its own memory.
  at::Tensor hand_out(OperandId operand) const;
  // Writes to the program's tensors are seen by autograd's version counters, as in eager.
  void bump_versions(const std::vector<at::Tensor>& inputs) const;

 private:
  struct BufferState {
    std::vector<OperandId> operands;
    bool transient = false;             // let go after a run
    c10::StorageImpl* bound = nullptr;  // input: what the operands are windows on
    int64_t shift = 0;                  // input: bytes that it begins later than recorded
  };
  // What one of the program's tensors must look like, packed: all of them are looked at before every run.
  struct Expected {
    uint32_t input = 0;
    uint32_t first = 0;  // input that stands for the memory
    int64_t offset = 0;
    uint32_t shape = 0;  // in shapes_: sizes, then strides
    uint32_t dims = 0;
    at::ScalarType dtype = at::kFloat;
    bool conj = false, neg = false;
    bool is_on_device = false;
  };
  struct Constant {
    BufferId buffer;
    at::Tensor bytes;     // where the step finds them
    at::Tensor original;  // of one on a device, on the host
  };

  [[nodiscard]] c10::Device device_of(const Buffer& buffer) const;
  void add_constant(BufferId id);
  void list_expected();
  bool looks_like(const at::Tensor& tensor, const Expected& expected) const;
  std::string mismatch(const ScheduleInput& input, const at::Tensor& tensor) const;
  std::string why_not_memory();
  void bind(BufferId buffer, const c10::Storage& storage, int64_t shift_bytes);
  void bind_arena(const ArenaPlace& arena);
  void bind_input(BufferId buffer, const at::Tensor& tensor);
  void release();
  bool is_in_arena(const at::Tensor& tensor) const;

  const Schedule& schedule_;
  InstructionMemory& memory_;
  std::vector<BufferState> buffers_;
  std::vector<at::Tensor> tensors_;   // by operand
  std::vector<void*> data_;           // by operand
  std::vector<BufferId> of_program_;  // buffers that an input names
  std::vector<BufferId> released_;
  std::vector<Expected> expected_;
  std::vector<int64_t> shapes_;
  std::vector<const c10::StorageImpl*> storages_;  // by expected: where it lay when the last run began
  std::vector<at::Tensor> host_tensors_;           // by input
  std::vector<Constant> constants_;
  ArenaPlace arena_;
  std::optional<c10::Device> device_;  // beside the host
};

}  // namespace stepc
