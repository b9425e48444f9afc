// The tensors of a replay, one for each value of the trace. Three kinds of storage:
//
//   planned    in the arena: tensors made once for each arena, views included, so view calls need not run
//   owned      the program's, or a constant of the trace: tensors made when the program's tensor is first seen or has
//   changed kept       outlives the step: tensors made anew in every run, on the memory that the call returned
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

class BoundValues {
 public:
  BoundValues(const Trace& trace, const Schedule& schedule);

  const at::Tensor& operator[](ValueId value) const { return tensors_[value.index()]; }

  // Whether the value's tensor stays the same from run to run while generation() does.
  bool lasts(ValueId value) const;
  uint64_t generation() const { return generation_; }

  std::string why_not(const std::vector<at::Tensor>& externals);
  // The same for what comes at a pause.
  std::string why_not_incoming(const std::vector<at::Tensor>& incoming) const;

  // Binds the program's tensors and the arena for one run; lets go of what must not be held between runs.
  class Run {
   public:
    Run(BoundValues& values, const std::vector<at::Tensor>& externals, std::byte* arena);
    ~Run();
    // Binds what came at a pause, by kIncoming external.
    void resume(const std::vector<at::Tensor>& incoming);
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    BoundValues& values_;
  };

  // A call has made `value`'s storage: for a planned storage its memory must be the planned one (it is copied there if
  // the allocator had to fall through), for a kept one all its values are made on it.
  void define(ValueId value, const at::Tensor& made);

  // A tensor for the program that owns its storage: a kept value as it is, a copy of the program's own memory.
  at::Tensor hand_out(ValueId value) const;
  // A tensor for a slot of the program: a kept value, or a window on the program's own memory.
  at::Tensor for_slot(ValueId value) const;

  // In-place writes to the program's tensors are seen by autograd's version counters, as in eager.
  void bump_versions(const std::vector<at::Tensor>& externals) const;

 private:
  enum class Kind : uint8_t { kPlanned, kOwned, kKept };
  struct StorageInfo {
    Kind kind = Kind::kPlanned;
    std::vector<ValueId> values;
    ssize_t external = -1;              // owned: the external that names it
    bool transient = false;             // owned: a batch tensor or gradient, let go after the run
    uint64_t offset = 0;                // planned: in the arena
    c10::StorageImpl* bound = nullptr;  // owned: the storage that the values are windows on
    int64_t shift = 0;                  // owned: where its tensor begins now, relative to the recording
  };

  // A constant of the trace: memory of its own, filled anew for each run.
  struct Constant {
    size_t external = 0;
    at::Tensor tensor;
    const std::string* bytes = nullptr;
  };

  // What one of the program's tensors must look like, packed: all of them are looked at before every run.
  struct Expected {
    size_t external = 0;
    size_t first = 0;  // external that stands for the storage
    int64_t offset = 0;
    uint32_t shape = 0;  // in shapes_: sizes, then strides
    uint32_t dims = 0;
    at::ScalarType dtype = at::kFloat;
    bool conj = false, neg = false;
  };

  void list_expected();
  bool looks_like(const at::Tensor& tensor, const Expected& expected) const;
  std::string why_not_memory();
  void make_constant(size_t external);
  void bind_arena(std::byte* arena);
  void bind_owned(StorageInfo& info, const at::Tensor& tensor);
  void release();

  const Trace& trace_;
  std::vector<StorageInfo> storages_;
  std::vector<at::Tensor> tensors_;
  std::vector<size_t> owned_;     // storages that an external names
  std::vector<size_t> released_;  // storages whose values are let go after a run
  std::vector<Expected> expected_;
  std::vector<int64_t> shapes_;
  std::vector<const c10::StorageImpl*> memory_;  // by expected: where it lay when the last run began
  std::vector<size_t> written_externals_;
  std::vector<Constant> constants_;
  std::byte* arena_ = nullptr;
  uint64_t generation_ = 1;
};

}  // namespace stepc
