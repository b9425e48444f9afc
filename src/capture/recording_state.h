// What one recording knows while it runs: the growing Trace and the weak references that tell storages apart. Private
// to capture/.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "capture/allocation_log.h"
#include "capture/recorder.h"

namespace stepc {

// The slot of ThreadLocalDebugInfo that carries a recording; PyTorch itself uses it in its tests only.
inline constexpr c10::DebugInfoKind kRecordingSlot = c10::DebugInfoKind::TEST_INFO_2;

class RecordingState final : public c10::DebugInfoBase {
 public:
  explicit RecordingState(const std::vector<OwnedTensor>& owned);

  // Around one ATen call whose arguments, then results, lie on the stack.
  void begin_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void end_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void abandon_call(const c10::OperatorHandle& op);  // the kernel threw

  // Completes the trace. `outputs` are the step's results, the only references to them.
  void finish(const std::vector<OwnedTensor>& owned, const std::vector<at::Tensor>& outputs);

  Recording take(std::vector<at::Tensor> outputs);

  AllocationLog& log() { return log_; }
  bool stopped() const { return stopped_; }

 private:
  struct TrackedStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak;
    std::vector<ValueId> values;  // every window seen on it
    int owned = -1;               // index into owned_, -1: made by the step
    int64_t last_use = -1;        // clock tick at the end of the last call that names it
    ssize_t allocation = -1;      // index of the log's event
    bool filled = false;          // some call has written to it
  };
  struct OwnedMeta {
    Owner owner;
    std::string key;
    Value window;  // storage unset until the step uses it
    c10::StorageImpl* storage = nullptr;
    // Keeps the address of a storage that dies during the step from meaning another one.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;
    bool used = false;
  };

  using OwnedNow = std::map<std::pair<Owner, std::string>, at::Tensor>;

  Arg tensor_argument(const at::Tensor& tensor, const c10::OperatorHandle& op);
  Arg argument_of(const c10::IValue& value, const c10::Argument& argument, const c10::OperatorHandle& op);
  Arg result_of(const c10::IValue& value, const c10::Argument& argument);
  StorageId track(const at::Tensor& tensor, int owned);
  StorageId find_or_adopt(const at::Tensor& tensor, const c10::OperatorHandle& op);
  ValueId value_on(StorageId storage, const at::Tensor& tensor);
  ValueId result_value(const at::Tensor& tensor);
  void use_owned(int index);
  void check_effects(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void check_reads(const Call& call);
  Phase phase_now();
  std::string module_now(const Call& call);
  void obstacle(std::string reason);
  void check_owned_storages(const OwnedNow& now);
  void find_gradients(const OwnedNow& now);
  void find_escapes();
  void list_allocations();

  Trace trace_;
  AllocationLog log_;
  std::vector<OwnedMeta> owned_;
  std::unordered_map<c10::StorageImpl*, int> owned_by_storage_;
  std::vector<TrackedStorage> tracked_;
  std::unordered_map<c10::StorageImpl*, StorageId> ids_;
  std::unordered_map<int64_t, std::string> module_of_sequence_;  // autograd sequence number -> forward module path
  std::vector<std::string> obstacles_;
  Call open_;
  bool backward_seen_ = false;
  bool stopped_ = false;
  std::chrono::steady_clock::duration overhead_{};
};

}  // namespace stepc
