// The observer of a Tracer (capture/tracer.h): it receives each call of the step and decides whether the call is the
// next one of the trace, whether it runs or is left out, and when the step leaves the trace. One class in several
// files; each file is a section below. Holds storages of the step weakly, those of the program while the step runs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/constants.h"
#include "aten/unreadable_storage.h"
#include "aten/virtual_memory.h"
#include "capture/made_tensors.h"
#include "capture/observer.h"
#include "capture/recorder.h"
#include "capture/recording_state.h"
#include "capture/tracer.h"
#include "capture/tracing/expected_call.h"
#include "capture/tracing/traced_states.h"

namespace stepc {

// The storage of this run that stands for a storage of the trace.
struct MetStorage {
  c10::StorageImpl* address = nullptr;                            // nullptr: not met yet
  int64_t shift = 0;                                              // bytes by which it begins later than recorded
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;  // of a storage that the step makes
  bool is_made = false;
};

// Memory of the storage's size, on its device.
c10::DataPtr memory_like(const c10::StorageImpl& storage);

class Tracer::Observer final : public CallObserver {
 public:
  explicit Observer(const Trace& trace);
  void bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators);
  // Releases the program's memory.
  void release();
  // Continues from the place of `from`, if this trace begins as that one did and with these numbers.
  bool take_over(const Observer& from);
  void begin(const Callbacks* callbacks, bool computes);

  // ---- a pause
  void pause(const std::vector<at::Tensor>& outputs, int64_t structure);
  void resume(const std::vector<at::Tensor>& incoming);
  [[nodiscard]] size_t pause_event() const { return pause_.value(); }
  std::vector<at::Tensor> held() override;
  void note(const at::Tensor& tensor) override;

  // ---- the step
  void end();
  // The step has thrown, perhaps through a kernel.
  void stop();
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;
  void begin_event(const std::string& key) override;
  void end_event() override;
  RecordingState* recording() override { return heir_ ? heir_->recording() : recording_.get(); }
  void leave(const Callbacks* callbacks, const std::string& why, bool records);
  bool show(const at::Tensor& tensor, const void* values);
  void hide(const at::Tensor& tensor);

  // ---- its results so far
  [[nodiscard]] bool is_following() const { return departure_.difference.empty(); }
  [[nodiscard]] bool is_compared() const { return heir_ ? heir_->is_compared() : is_following(); }
  [[nodiscard]] const Departure& departure() const { return departure_; }
  [[nodiscard]] const std::map<size_t, Arg>& numbers() const { return numbers_; }
  [[nodiscard]] const std::vector<HostSupply>& supplied() const { return supplied_; }
  [[nodiscard]] const std::map<std::string, at::Tensor>& host_data() const { return host_data_; }
  [[nodiscard]] bool is_held(StorageId storage) const;
  [[nodiscard]] at::Tensor held(ValueId value) const;
  [[nodiscard]] StorageId storage_of(ValueId value) const { return trace_.values[value.index()].storage; }
  [[nodiscard]] ValueId held_beside(const std::vector<ValueId>& given) const;
  // At the pause the plan then reads what it gives.
  void give(ValueId value, const at::Tensor& result);

 private:
  // ---- trace_observer.cpp
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);
  void note_made(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  [[nodiscard]] bool is_at_pause() const;
  // Whether the trace pauses here, with these outputs.
  bool pauses(const std::vector<at::Tensor>& outputs, int64_t structure);

  // ---- trace_handover.cpp: another trace continues instead
  template <class Test>
  bool hand_over(const Test& goes_on) {
    if (!computes_) states_.look(next_);
    while (Tracer* const tracer = callbacks_->other ? callbacks_->other() : nullptr) {
      const std::shared_ptr<Observer> other = tracer->observer_;
      if (!other->take_over(*this) || !goes_on(*other)) {
        other->release();
        continue;
      }
      heir_ = other;
      recording_.reset();
      callbacks_->took_over();
      if (!computes_) other->states_.ran_instead();
      return true;
    }
    return false;
  }
  // Whether call `c` is that of `from`, which was given these numbers; adds the numbers that this trace is supplied
  // with.
  bool begins_as(const Observer& from, size_t c, const std::map<size_t, c10::IValue>& given,
                 std::vector<HostSupply>& supplied) const;
  // Whether this trace pauses as that of `from` does, which is past its pause, and resumes with the same tensors.
  bool comes_back_as(const Observer& from);
  // Whether `value` lies on the memory that `from` has met in its place. A value that the step makes has no other
  // memory; a value that the step is given is this plan's own input, so it is the same tensor, the same bytes or the
  // host's data.
  bool meets_as(const Observer& from, ValueId value);

  // ---- trace_compare.cpp: whether a call is the next one of the trace
  void meet(ValueId value, const at::Tensor& tensor);
  // Memory of the host's own stands for an external of kind kHost: the plan neither makes it nor writes to it.
  bool adopt(const External& external, const at::Tensor& tensor);
  // Whether a tensor made from host data has the same bytes as the recorded one.
  bool is_constant(StorageId storage, const at::Tensor& tensor);
  bool is_value(const at::Tensor& tensor, ValueId id);
  bool are_values(const c10::IValue& given, const std::vector<ValueId>& ids);
  bool is_generator(const c10::IValue& given, GeneratorArg expected);
  static bool is_same(const c10::IValue& a, const c10::IValue& b);
  // Whether the call is the next one of the trace; with `takes`, takes the numbers that the host supplies.
  bool follows(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool takes = true);
  // Whether a step that ends here has followed the whole trace.
  bool is_at_end() { return next_ == expected_.size() && (computes_ || states_.are_as_recorded(next_)); }
  bool is_argument(const ExpectedCall& expected, const Arg& arg, const c10::IValue& given, size_t index,
                   const c10::Argument& schema);
  bool supply(size_t arg, const c10::IValue& number);
  std::string difference_of(const c10::OperatorHandle& op) const;

  // ---- trace_host_calls.cpp: calls that the host makes itself
  // Whether the host gives this argument, beside tensors, with any value.
  static bool is_given_by_host(const ExpectedCall& expected, const Arg& arg);
  // Makes the call now, on what the plan has computed for it; an exception passes through where eager throws it.
  void make_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);
  // Puts `given` in the places of the call's tensors.
  void put(const std::vector<at::Tensor>& given, torch::jit::Stack& args) const;
  // Whether these are results of call `c`.
  [[nodiscard]] bool makes(size_t c, const torch::jit::Stack& results) const;
  // The results are real: they are the host's own, and data of the plan.
  void take(torch::jit::Stack& results, torch::jit::Stack* stack);
  template <class F>
  void for_each_result(CallId id, const torch::jit::Stack& values, F&& f) const;

  // ---- trace_skip.cpp: results in place of computed ones
  void meet_results(CallId id, const torch::jit::Stack& stack);
  at::Tensor made(ValueId id);
  at::Tensor window_on(ValueId id, const c10::Storage& storage) const;
  // Leaves results that look right: the operands of a call that writes to them, or tensors without memory.
  void skip(CallId id, torch::jit::Stack* stack);
  [[nodiscard]] bool changes_shown(const Call& call) const;
  void give_number(size_t event, const c10::OperatorHandle& op, torch::jit::Stack* stack);
  // Sets Departure::decided if the last number is another choice than the recorded one: what follows may depend on it.
  void note_number(CallId id, const Arg& number);

  // ---- trace_leave.cpp: leaving the trace
  // Computes everything that was left out, in order, into the memory that the step holds.
  void stray(std::string why, bool records = true);
  void compute_again();
  // Repeats the marks that the host set before call `c`.
  void mark_again(size_t c);
  c10::Storage storage_to_compute_on(StorageId id);
  at::Tensor tensor_to_compute_on(ValueId id);
  c10::IValue argument(const Arg& arg, const c10::Argument& schema, const c10::IValue& constant);
  void compute(CallId id, size_t& supplied);
  // Stores what was just computed as `value` where the step sees it.
  void fill(ValueId value, const at::Tensor& computed);

  struct Mark {
    std::string key;
    size_t begin = 0;
    std::optional<size_t> end;  // none: still open
  };

  const Trace& trace_;
  const std::vector<ExpectedCall> expected_;
  std::vector<bool> written_;                     // by storage: a call writes to it
  std::map<StorageId, const External*> host_of_;  // by external of kind kHost
  TracedStates states_;
  std::optional<size_t> pause_;  // among the trace's events
  bool is_past_pause_ = false;
  std::set<StorageId> given_at_pause_;
  MadeTensors made_;                           // until the pause
  std::vector<Mark> marks_;                    // set by the host so far
  std::shared_ptr<RecordingState> recording_;  // of a step that is computed as it comes, else since it left the trace
  std::vector<MetStorage> met_;                // by storage
  std::vector<c10::Storage> kept_;             // of the program, and constants
  std::map<StorageId, c10::Storage> alive_;    // while left-out calls are computed
  const Callbacks* callbacks_ = nullptr;
  bool computes_ = false;
  std::shared_ptr<Observer> heir_;  // continues instead of this one
  size_t next_ = 0;
  bool calls_host_ = false;             // during a call that belongs to the host
  const c10::Argument* why_ = nullptr;  // the argument that differed
  Departure departure_;
  std::map<size_t, Arg> numbers_;  // read by the host, by call
  std::vector<HostSupply> supplied_;
  std::map<std::string, at::Tensor> host_data_;
  std::set<const c10::StorageImpl*> stale_;       // written by calls that were left out
  std::multiset<const c10::StorageImpl*> shown_;  // memory that the step's code inspects, once for each reader
  std::set<StorageId> filled_;                    // made by the step, with present values
};

}  // namespace stepc
