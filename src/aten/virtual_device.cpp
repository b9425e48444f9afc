#include "aten/virtual_device.h"

#include <atomic>
#include <cstring>
#include <memory>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "aten/attention_choice.h"
#include "aten/device_hook.h"
#include "aten/virtual_memory.h"
#include "base/check.h"

namespace stepc {

namespace {

std::atomic<bool> g_installed{false};

c10::Stream only_stream() { return c10::Stream(c10::Stream::DEFAULT, kVirtualDevice); }

// One device, one stream; events are over as soon as they are recorded.
struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<c10::kCUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return kVirtualDevice; }
  c10::Device getDevice() const override { return kVirtualDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return only_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only_stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return only_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only_stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

class SeedAndOffset final : public c10::GeneratorImpl {
 public:
  SeedAndOffset() : GeneratorImpl(kVirtualDevice, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  void set_offset(uint64_t offset) override { state_.offset = offset; }
  uint64_t get_offset() const override { return state_.offset; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  // In the bytes of CUDA's generators.
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == sizeof state_ && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                "the state of a generator on cuda is ", sizeof state_, " bytes");
    std::memcpy(&state_, state.data(), sizeof state_);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::detail::empty_cpu({static_cast<int64_t>(sizeof state_)}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &state_, sizeof state_);
    return state.getIntrusivePtr();
  }

 private:
  SeedAndOffset* clone_impl() const override {
    auto* const copy = new SeedAndOffset();
    copy->state_ = state_;
    return copy;
  }
  struct {
    uint64_t seed = c10::default_rng_seed_val, offset = 0;
  } state_;
};

const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<SeedAndOffset>();
  return generator;
}

struct CudaHooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::Device getDeviceFromPtr(void*) const override { return kVirtualDevice; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<SeedAndOffset>(); }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

// PyTorch made its own when it was imported and keeps them; neither kind has data.
void replace_hooks() {
  static const CudaHooks* const ours = new CudaHooks();
  auto* const theirs = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  std::memcpy(static_cast<void*>(theirs), static_cast<const void*>(ours), sizeof(void*));
}

// Of another kind of device than the CPU and CUDA, or empty.
std::string other_device() {
  for (const c10::DeviceType type : {c10::kXPU, c10::kHIP, c10::kMPS, c10::kXLA, c10::kHPU, c10::kPrivateUse1}) {
    const auto* const guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].load();
    if (guard != nullptr && guard->deviceCount() > 0) return c10::DeviceTypeName(type, /*lower_case=*/true);
  }
  return {};
}

void free_storage(void* holder) { delete static_cast<c10::Storage*>(holder); }

at::Tensor with_memory(const at::Tensor& tensor, c10::DataPtr memory) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                                   std::move(memory), c10::GetCPUAllocator(),
                                                                   /*resizable=*/true));
  at::Tensor out = tensor_on(storage, tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) out.unsafeGetTensorImpl()->set_wrapped_number(true);
  return out;
}

}  // namespace

std::string install_virtual_device(int sm) {
  if (has_virtual_device()) return {};
  auto& guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kCUDA)];
  if (guard.load() == nullptr) return "this torch is built without CUDA";
  if (guard.load()->deviceCount() > 0) return "this machine has a GPU of its own";
  if (const std::string other = other_device(); !other.empty()) return str("this process has tensors on {}", other);
  replace_hooks();
  guard.store(new DeviceGuard());
  choose_attention_for(sm);
  if (!at::globalContext().hasCUDA() || at::globalContext().defaultGenerator(kVirtualDevice) != default_generator())
    return "this torch asks for its device in another way than those that stepc knows";
  g_installed.store(true, std::memory_order_release);
  return install_device_hook(c10::kCUDA);
}

bool has_virtual_device() { return g_installed.load(std::memory_order_acquire); }
bool is_on_virtual_device(const c10::Device& device) { return device.is_cuda() && has_virtual_device(); }

at::Generator virtual_generator() { return default_generator(); }

at::Tensor on_host(const at::Tensor& tensor) {
  if (!is_on_virtual_device(tensor.device())) return tensor.to(at::kCPU);
  if (is_virtual(tensor))
    return tensor_on(virtual_storage(tensor.storage().nbytes()), tensor.sizes(), tensor.strides(),
                     tensor.storage_offset(), tensor.scalar_type());
  return with_memory(tensor, {tensor.storage().mutable_data(), c10::Device(c10::kCPU)});
}

at::Tensor on_virtual_device(const at::Tensor& tensor) {
  void* const data = tensor.storage().mutable_data();
  return with_memory(tensor, {data, new c10::Storage(tensor.storage()), &free_storage, kVirtualDevice});
}

}  // namespace stepc
