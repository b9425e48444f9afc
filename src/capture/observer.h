// The seam to PyTorch's dispatcher: an observer sees every ATen call of the thread that switched it on, below autograd
// and autocast and above the kernels, and decides how the call runs. ThreadLocalState takes it along to autograd's
// threads.
//
// Depends on LibTorch internals: DispatchKey::Fake (PyTorch's own fake tensors use Python's key instead) and the
// TEST_INFO_2 slot of ThreadLocalDebugInfo, which PyTorch uses in its tests only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace stepc {

class RecordingState;

inline constexpr c10::DispatchKey kObserverKey = c10::DispatchKey::Fake;

class CallObserver : public c10::DebugInfoBase {
 public:
  // Handles one call: takes its arguments from the stack and leaves its results there. `below` are the dispatch keys
  // under the observer: op.redispatchBoxed(below, stack) runs the kernel. Calls that kernels make themselves do not
  // arrive here.
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) = 0;
  // Host code with state of its own makes the calls between these two (HostEventScope).
  virtual void begin_event(const std::string&) {}
  virtual void end_event() {}
  // The recording of the step's calls; nullptr if nothing records them.
  virtual RecordingState* recording() { return nullptr; }
  // For a step that pauses: the tensors that it has made so far and that the program holds (capture/made_tensors.h).
  virtual std::vector<at::Tensor> held() { return {}; }
  // The step has made this tensor without a call that the observer sees.
  virtual void note(const at::Tensor&) {}
};

// The calling thread's observer; nullptr without one.
CallObserver* current_observer();

// Switches `observer` on for the calling thread until the scope ends, instead of an outer scope's.
class ObserverScope {
 public:
  explicit ObserverScope(const std::shared_ptr<CallObserver>& observer);

 private:
  // Autograd runs nodes of a device on a thread of its own, whose allocations no observer sees. On the calling thread
  // the nodes run in the same order.
  class BackwardHere {
   public:
    BackwardHere();
    ~BackwardHere();
    BackwardHere(const BackwardHere&) = delete;
    BackwardHere& operator=(const BackwardHere&) = delete;

   private:
    bool before_;
  };
  c10::DebugInfoGuard slot_;
  c10::impl::ForceDispatchKeyGuard key_;
  BackwardHere backward_;
};

// Takes the dispatch key for this process and gives it the operator stepc::shown. Idempotent. Throws UserError if
// another library has the key.
void install_observer();

}  // namespace stepc
