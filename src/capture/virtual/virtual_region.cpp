#include "capture/virtual/virtual_region.h"

#include "base/check.h"
#include "capture/observer.h"

namespace stepc {

class VirtualRegion::Observer final : public CallObserver {
 public:
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    kernels.run(op, below, stack);
  }
  VirtualKernels kernels;
};

struct VirtualRegion::Scope {
  explicit Scope(const std::shared_ptr<Observer>& observer) : observing(observer) {}
  ObserverScope observing;
};

VirtualRegion::VirtualRegion() : observer_(std::make_shared<Observer>()) {
  install_observer();
  USER_CHECK(current_observer() == nullptr,
             "a virtual region is opened inside another one or inside a step that is being recorded: close that first");
  scope_ = std::make_unique<Scope>(observer_);
}

VirtualRegion::~VirtualRegion() = default;

VirtualKernels& VirtualRegion::kernels() { return observer_->kernels; }

}  // namespace stepc
