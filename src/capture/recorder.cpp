#include "capture/recorder.h"

#include <memory>
#include <mutex>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "capture/recording_state.h"

namespace stepc {

namespace {

// Below autograd and autocast, above the backends; PyTorch keeps it for its own fake tensors, which use Python's key.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

RecordingState* current_recording() {
  return dynamic_cast<RecordingState*>(c10::ThreadLocalDebugInfo::get(kRecordingSlot));
}

void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below_recorder(kKey);
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  RecordingState* state = current_recording();
  if (state == nullptr || state->stopped() || op.schema().name().starts_with("profiler::")) {
    op.redispatchBoxed(below, stack);
    return;
  }
  state->begin_call(op, *stack);
  try {
    op.redispatchBoxed(below, stack);
  } catch (...) {
    state->abandon_call(op);
    throw;
  }
  state->end_call(op, *stack);
}

// Turns the recorder on for the calling thread and takes it down however the scope is left.
class RecordingScope {
 public:
  explicit RecordingScope(const std::shared_ptr<RecordingState>& state)
      : allocations_(state->log(), /*watch_frees=*/true),
        slot_(kRecordingSlot, state),
        key_(c10::DispatchKeySet(kKey)) {}

 private:
  AllocationScope allocations_;
  c10::DebugInfoGuard slot_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace

void install_recorder() {
  static std::mutex mutex;
  static torch::Library* library = nullptr;  // leaked: the registration lasts as long as the process
  const std::lock_guard lock(mutex);
  if (library != nullptr) return;
  USER_CHECK(!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey),
             "another library in this process has taken PyTorch's dispatch key '{}' with a fallback of its own; stepc "
             "records steps there and cannot work beside it",
             c10::toString(kKey));
  install_cpu_hook();
  auto taken = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  taken->fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
  library = taken.release();
}

bool is_recording() { return current_recording() != nullptr; }

Recording record(const std::function<std::vector<OwnedTensor>()>& list_owned,
                 const std::function<std::vector<at::Tensor>()>& step) {
  install_recorder();
  USER_CHECK(!is_recording(),
             "an accelerated step is called inside another one that is being recorded: accelerate the "
             "outer step only");
  const auto state = std::make_shared<RecordingState>(list_owned());
  std::vector<at::Tensor> outputs;
  {
    const RecordingScope scope(state);
    outputs = step();
    // Detached, so that the autograd graph of a returned loss does not keep the step's memory.
    for (at::Tensor& output : outputs)
      if (output.defined()) output = output.detach();
    state->finish(list_owned(), outputs);
  }
  return state->take(std::move(outputs));
}

}  // namespace stepc
