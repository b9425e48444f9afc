#include "capture/virtual/virtual_region.h"

#include "aten/operators.h"
#include "aten/virtual_device.h"
#include "base/check.h"
#include "capture/observer.h"
#include "capture/virtual/call_device.h"

namespace stepc {

class VirtualRegion::Observer final : public CallObserver {
 public:
  using Refuse = void(const std::string& why);
  explicit Observer(Refuse* refuse) : refuse_(refuse) {}
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    if (refuse_ == nullptr) return kernels.run(op, below, stack);
    const size_t count = op.schema().arguments().size();
    if (!kernels.is_view(op) && device_of_call(op.schema().name(), *stack, count).takes_device)
      refuse_(
          str("{} would run on {}, and no such device is here: stepc.virtual(device=\"cuda\") is over, and what was "
              "made in it can be planned (stepc.plan), not run",
              name_of(op), kVirtualDevice.str()));
    op.redispatchBoxed(below, stack);
  }
  VirtualKernels kernels;

 private:
  Refuse* refuse_;
};

struct VirtualRegion::Scope {
  explicit Scope(const std::shared_ptr<Observer>& observer) : observing(observer) {}
  ObserverScope observing;
};

VirtualRegion::VirtualRegion(void (*refuse)(const std::string& why)) : observer_(std::make_shared<Observer>(refuse)) {
  install_observer();
  USER_CHECK(current_observer() == nullptr,
             "a virtual region is opened inside another one or inside a step that is being recorded: close that first");
  scope_ = std::make_unique<Scope>(observer_);
}

VirtualRegion::~VirtualRegion() = default;

VirtualKernels& VirtualRegion::kernels() { return observer_->kernels; }

}  // namespace stepc
