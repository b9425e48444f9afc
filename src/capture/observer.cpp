#include "capture/observer.h"

#include <mutex>
#include <optional>

#include <ATen/Functions.h>
#include <c10/core/AutogradState.h>
#include <torch/library.h>

#include "aten/device_hook.h"
#include "base/check.h"
#include "capture/no_observer.h"

namespace stepc {

namespace {
const c10::DebugInfoKind kSlot = c10::DebugInfoKind::TEST_INFO_2;

void observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below_observer(kObserverKey);
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kObserverKey);
  CallObserver* observer = current_observer();
  if (observer == nullptr || op.schema().name().starts_with("profiler::"))
    op.redispatchBoxed(below, stack);
  else
    observer->call(op, below, stack);
}
}  // namespace

CallObserver* current_observer() { return dynamic_cast<CallObserver*>(c10::ThreadLocalDebugInfo::get(kSlot)); }

ObserverScope::BackwardHere::BackwardHere()
    : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  if (has_any_device_hook()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}
ObserverScope::BackwardHere::~BackwardHere() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(before_);
}

ObserverScope::ObserverScope(const std::shared_ptr<CallObserver>& observer) : slot_(kSlot, observer) {
  // Not an IncludeDispatchKeyGuard: inside an observer's call the key is excluded.
  c10::impl::tls_set_dispatch_key_excluded(kObserverKey, false);
  c10::impl::tls_set_dispatch_key_included(kObserverKey, true);
}

NoObserverScope::NoObserverScope() : slot_(kSlot, std::make_shared<c10::DebugInfoBase>()) {}

void install_observer() {
  static std::mutex mutex;
  static torch::Library* library = nullptr;  // leaked: the registration lasts as long as the process
  const std::lock_guard lock(mutex);
  if (library != nullptr) return;
  USER_CHECK(!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kObserverKey),
             "another library in this process has taken PyTorch's dispatch key '{}' with a fallback of its own; stepc "
             "records steps there and cannot work beside it",
             c10::toString(kObserverKey));
  auto taken = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kObserverKey, __FILE__, __LINE__);
  taken->fallback(torch::CppFunction::makeFromBoxedFunction<&observe>());
  library = taken.release();
  // What a tensor holds, for code that reads it past the dispatcher: a call that the host makes itself.
  static auto* const operators = new torch::Library(torch::Library::DEF, "stepc", std::nullopt, __FILE__, __LINE__);
  operators->def("shown(Tensor tensor) -> Tensor",
                 torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                 [](const at::Tensor& tensor) { return tensor.clone(); }));
}

}  // namespace stepc
