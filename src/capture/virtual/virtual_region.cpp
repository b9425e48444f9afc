#include "capture/virtual/virtual_region.h"

#include "aten/operators.h"
#include "aten/virtual_device.h"
#include "base/check.h"
#include "capture/observer.h"
#include "capture/virtual/call_device.h"
#include "capture/virtual/operator_traits.h"

namespace stepc {

class VirtualRegion::Observer final : public CallObserver {
 public:
  using Refuse = void(const std::string& why);
  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    if (refuse == nullptr) return kernels.run(op, below, stack);
    const size_t count = op.schema().arguments().size();
    if (!traits_of(op).metadata_only && device_of_call(op.schema().name(), *stack, count).takes_device)
      refuse(
          str("{} would run on {}, and no such device is here: stepc.virtual(device=\"cuda\") is over, and what was "
              "made in it can be planned (stepc.plan), not run",
              name_of(op), kVirtualDevice.str()));
    op.redispatchBoxed(below, stack);
  }
  VirtualKernels kernels;
  Refuse* refuse = nullptr;
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
void VirtualRegion::run_and_refuse(void (*refuse)(const std::string& why)) { observer_->refuse = refuse; }

}  // namespace stepc
