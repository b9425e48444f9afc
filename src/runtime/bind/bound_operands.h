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

// Whether a tensor that the step returns may be made in memory that is given for it.
bool takes_memory(const Schedule& schedule, const ScheduleOutput& output);

class BoundOperands {
 public:
  // `schedule` and `memory` must outlive this object.
  BoundOperands(const Schedule& schedule, InstructionMemory& memory);

  const at::Tensor& operator[](OperandId operand) const { return tensors_[operand.index()]; }
  // The operand's first element.
  void* data(OperandId operand) const { return data_[operand.index()]; }
  // What lies at this offset of the arena.
  std::byte* arena_at(uint64_t offset) const { return arena_.at(offset); }

  // Compares the program's tensors, one for each of the schedule's inputs, with those of the recording: element types,
  // sizes, strides, and which of them share memory. Returns the difference, empty if there is none. Does not check
  // tensors that come at a pause, nor inputs that are not the program's tensors.
  std::string why_not(const std::vector<at::Tensor>& inputs);
  std::string why_not_incoming(const std::vector<at::Tensor>& incoming) const;

  // Binds the program's tensors and the arena for one run; at its end releases what must not be held between runs.
  class Run {
   public:
    Run(BoundOperands& operands, const std::vector<at::Tensor>& inputs, const ArenaPlace& arena);
    ~Run();
    // Binds the tensors that came at a pause, by the keys of their inputs.
    void resume(const std::vector<at::Tensor>& incoming);
    // What the step returns as this output is made in that tensor's memory, where takes_memory().
    void give(const ScheduleOutput& output, const at::Tensor& memory);
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    BoundOperands& operands_;
  };

  // Whether the operand's memory was given.
  [[nodiscard]] bool is_given(OperandId operand) const {
    return buffers_[schedule_.operands[operand.index()].buffer.index()].is_given;
  }
  // Allocates the operand, if it lies in an own buffer without memory.
  void make_own(OperandId operand);
  // A call has made `operand`: moves it to its place, unless it is there or may stay in memory of its own. `reads`: the
  // call's operands, whose memory it must not share.
  void define(OperandId operand, const at::Tensor& made, const std::vector<OperandId>& reads);

  // The executor's own tensor for an input that is not the program's. It is the host's. A step on a device reads a copy
  // of all of them there: after a change, upload_numbers() before the next instruction that reads one.
  const at::Tensor& host_tensor(uint32_t input) {
    have_numbers_changed_ = true;
    return host_tensors_[input];
  }
  void upload_numbers() {
    if (!have_numbers_changed_) return;
    have_numbers_changed_ = false;
    // The host's memory is not page-locked: it has been read when the call returns.
    if (numbers_there_.defined()) numbers_there_.copy_(numbers_, /*non_blocking=*/true);
  }

  // A tensor for the program: a window on an own buffer, or on memory of its own.
  at::Tensor hand_out(OperandId operand) const;
  // Bumps autograd's version counters of the written tensors of the program, as eager does.
  void bump_versions(const std::vector<at::Tensor>& inputs) const;

 private:
  struct BufferState {
    std::vector<OperandId> operands;
    bool transient = false;             // released after a run
    bool is_given = false;              // own: its memory, for the run
    c10::StorageImpl* bound = nullptr;  // input: the storage on which the operands are windows
    int64_t shift = 0;                  // input: bytes by which it begins later than recorded
  };
  // The expected form of one of the program's tensors, packed, because every run checks all of them.
  struct Expected {
    uint32_t input = 0;
    uint32_t first = 0;  // the input that stands for the memory
    int64_t offset = 0;
    uint32_t shape = 0;  // in shapes_: sizes, then strides
    uint32_t dims = 0;
    at::ScalarType dtype = at::kFloat;
    bool conj = false, neg = false;
    bool is_on_device = false;
    bool is_aligned = false;  // generated kernels of a device count on it
  };
  struct Constant {
    BufferId buffer;
    at::Tensor bytes;     // where the step finds the bytes
    at::Tensor original;  // on the host, of a constant on a device
  };

  [[nodiscard]] c10::Device device_of(const Buffer& buffer) const;
  void add_host_tensors();
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
  std::vector<const c10::StorageImpl*> storages_;  // by expected: the storage at the beginning of the last run
  std::vector<at::Tensor> host_tensors_;           // by input
  at::Tensor numbers_, numbers_there_;             // of a step on a device: all of them, and their copy there
  bool have_numbers_changed_ = true;
  std::vector<Constant> constants_;
  ArenaPlace arena_;
  std::optional<c10::Device> device_;  // beside the host
};

}  // namespace stepc
