// The state of one recording while it runs: the growing Trace, and the weak references that distinguish storages.
// Private to capture/.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aten/generator_snapshot.h"
#include "capture/allocation_log.h"
#include "capture/made_tensors.h"
#include "capture/observer.h"
#include "capture/random_states.h"
#include "capture/recorder.h"

namespace stepc {

class RecordingState final : public CallObserver {
 public:
  // `kernels`: calls run on these instead of their own; nullptr: on their own.
  RecordingState(RecordedProgram& program, VirtualKernels* kernels);
  // For a step that has begun.
  RecordingState(RecordedProgram& program, std::vector<OwnedBefore> before);

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;

  void begin_event(const std::string& key) override { begin_event(key, gradients_now()); }
  void end_event() override;
  RecordingState* recording() override { return this; }
  std::vector<at::Tensor> held() override;
  void note(const at::Tensor& tensor) override { made_.note(tensor); }
  void note_made() { notes_made_ = true; }

  // ---- repeats what a step had done before it was recorded

  // Until `as(nullptr)`, calls count as made at the place of this one.
  void as(const Call* recorded) { as_ = recorded; }
  void begin_event(const std::string& key, std::vector<Rebinding> gradients);
  // The gradient in `tensor`, which the program owns or the step has made by now.
  Rebinding gradient(const std::string& key, const at::Tensor& tensor);
  // The place at which the number read last was read.
  void read_at(std::string source) { trace_.reads.back().source = std::move(source); }
  // A call that was made on `from` now refers to `to`.
  void moved(c10::StorageImpl* from, const c10::Storage& to);

  void obstacle(std::string reason);
  void effect(std::string effect) { effects_.push_back(std::move(effect)); }
  // Inside a kernel without a description the program's code may do anything: it runs at every step.
  bool is_in_unknown() const { return in_unknown_; }
  size_t reads() const { return trace_.reads.size(); }
  // Whether a call so far has named the tensor's memory and the program does not own it; true for a tensor without
  // memory.
  bool has_made(const at::Tensor& tensor) const {
    if (!tensor.has_storage()) return true;
    const auto found = ids_.find(tensor.storage().unsafeGetStorageImpl());
    return found != ids_.end() && tracked_[found->second.index()].owned < 0;
  }
  void read_decides(size_t read);

  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  void resume(const std::vector<at::Tensor>& incoming);

  // Completes the trace. `output` holds the step's results, the only references to them.
  void finish(const StepOutput& output);

  Recording take(StepOutput output);

  AllocationLog& log() { return log_; }
  // Why virtual kernels could not continue, with the place; empty if they could.
  const std::string& refusal() const { return refusal_; }

 private:
  struct TrackedStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;
    std::vector<ValueId> values;  // every window seen on it
    uint64_t bytes = 0;           // of the whole storage; the trace's may be a region of it,
    int64_t begin = 0;            // which begins at this byte
    int owned = -1;               // index into owned_, -1: made by the step or a constant
    int64_t last_use = -1;        // clock tick at the end of the last call that names it
    ssize_t allocation = -1;      // index of the log's event
    bool filled = false;          // a call has written to it
    bool filled_by_host = false;  // therefore no replay makes this memory
    std::string why_unowned;      // made neither by the step nor by the program: why that may be an obstacle
  };
  // Batches are windows on data of the program. Windows that overlap are one storage of the trace.
  struct BatchRegion {
    int64_t begin = 0;  // bytes
    int64_t end = 0;
    int owned = -1;  // the first of its tensors
    StorageId id;    // set when the step uses it
  };

  using OwnedNow = std::map<std::pair<Owner, std::string>, at::Tensor>;

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);
  void begin_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void end_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void abandon_call(const c10::OperatorHandle& op);  // the kernel threw

  Arg tensor_argument(const at::Tensor& tensor, const c10::OperatorHandle& op, bool is_viewed);
  Arg argument_of(const c10::IValue& value, const c10::Argument& argument, const c10::OperatorHandle& op);
  Arg result_of(const c10::IValue& value, const c10::Argument& argument);
  // The storage of `tensor` in the trace; none: the step has not met it, and it has no owner.
  std::optional<StorageId> find_storage(const at::Tensor& tensor);
  Space space_of(const at::Tensor& tensor);
  StorageId track(const at::Tensor& tensor, int owned);
  bool is_known_memory(const c10::Storage& storage) const;
  StorageId track_unowned(const at::Tensor& tensor, const c10::OperatorHandle& op);
  bool adopt_host_data(StorageId id);
  StorageId find_or_adopt(const at::Tensor& tensor, const c10::OperatorHandle& op);
  ValueId value_on(StorageId storage, const at::Tensor& tensor);
  ValueId result_value(const at::Tensor& tensor);
  void use_owned(int index, StorageId storage);
  TrackedStorage& tracked(ValueId value) { return tracked_[trace_.values[value.index()].storage.index()]; }
  void check_reads(const Call& call);
  std::string why_hosts(const c10::OperatorHandle& op);
  Phase phase_now();
  std::string module_now(const Call& call);
  std::string place();  // " (in 'model.layers.0' at model.py:12)"

  void check_owned_storages(const OwnedNow& now);
  void find_rebindings(const OwnedNow& now);
  void own(OwnedBefore one);
  void own_all(std::vector<OwnedBefore> all);
  void find_batch_regions(const std::vector<OwnedBefore>& owned);
  Value window_of(const at::Tensor& tensor, StorageId storage);
  ValueId output_value(const at::Tensor& output);
  void find_unowned(const std::vector<at::Tensor>& outputs);
  void find_escapes();
  void list_allocations();
  std::vector<Rebinding> gradients_now();

  RecordedProgram& program_;
  VirtualKernels* kernels_;
  std::string refusal_;
  Trace trace_;
  AllocationLog log_;
  RandomStates random_;
  std::vector<OwnedBefore> owned_;
  std::unordered_map<c10::StorageImpl*, int> owned_by_storage_;
  std::unordered_map<c10::StorageImpl*, std::vector<BatchRegion>> batch_regions_;
  std::vector<TrackedStorage> tracked_;
  std::unordered_map<c10::StorageImpl*, StorageId> ids_;
  std::unordered_map<int64_t, std::string> module_of_sequence_;  // autograd sequence number -> forward module path
  uint64_t first_sequence_ = 0;  // autograd nodes of this thread with a lower number existed before the step
  MadeTensors made_;             // until the pause
  bool notes_made_ = false;
  std::vector<std::string> obstacles_;
  std::vector<std::string> effects_;
  std::vector<Unowned> unowned_;
  Call open_;
  const Call* as_ = nullptr;
  bool open_shape_depends_ = false;
  bool open_is_hosts_ = false;
  bool in_unknown_ = false;                          // of the open call: the kernel may be the program's own code
  std::optional<GeneratorSnapshot> before_unknown_;  // of the default generator
  bool event_open_ = false;
  bool backward_seen_ = false;
  bool stopped_ = false;
  bool raised_ = false;  // by the kernel of a call
  std::chrono::steady_clock::duration overhead_{};
  std::chrono::steady_clock::duration settling_{};
};

}  // namespace stepc
