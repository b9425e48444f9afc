#include "aten/device_hook.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include <dlfcn.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "aten/cpu_hook.h"
#include "aten/cuda_library.h"
#include "aten/virtual_device.h"
#include "base/check.h"

namespace stepc {

namespace {
constexpr size_t kKinds = static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES);
std::array<std::atomic<bool>, kKinds> g_hooked{};  // by kind of device
std::atomic<bool> g_any_hooked{false};
void* g_cuda_library = nullptr;
thread_local bool t_is_librarys = false;  // a LibraryMemoryScope is open

void free_in_arena(void* memory) {
  if (AllocationClient* const client = client_of_this_thread()) client->on_arena_free(memory, 0);
}

void free_watched(void* holder) {
  auto* const memory = static_cast<c10::DataPtr*>(holder);
  tell_watchers(memory->get());
  delete memory;
}

c10::DataPtr allocate(c10::Allocator& base, c10::DeviceType type, size_t bytes) {
  AllocationClient* const client = bytes == 0 || t_is_librarys ? nullptr : client_of_this_thread();
  if (client == nullptr) return base.allocate(bytes);
  if (void* const memory = client->allocate_on_device(bytes))
    return {memory, memory, &free_in_arena, c10::impl::VirtualGuardImpl(type).getDevice()};
  c10::DataPtr memory = base.allocate(bytes);
  client->on_device_allocation(memory.get(), bytes);
  if (!client->watches_device()) return memory;
  void* const at = memory.get();
  const c10::Device device = memory.device();
  return {at, new c10::DataPtr(std::move(memory)), &free_watched, device};
}

const c10::DataPtr& unwrap(const c10::DataPtr& memory) {
  return memory.get_deleter() == &free_watched ? *static_cast<const c10::DataPtr*>(memory.get_context()) : memory;
}

class DeviceHook final : public c10::Allocator {
 public:
  DeviceHook(c10::Allocator* base, c10::DeviceType type) : base_(base), type_(type) {}
  c10::DataPtr allocate(size_t bytes) override { return stepc::allocate(*base_, type_, bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // what it gives may be of three kinds
  void copy_data(void* to, const void* from, size_t bytes) const override { base_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* base_;
  c10::DeviceType type_;
};

// libstepc_cuda.so lies beside the file that this code is in, in the lib/ beside that file's folder, or where the
// system looks.
std::string install_cuda_hook() {
  Dl_info own{};
  std::string folder;
  if (::dladdr(reinterpret_cast<void*>(&install_cuda_hook), &own) != 0 && own.dli_fname != nullptr) {
    const std::string file = own.dli_fname;
    folder = file.substr(0, file.rfind('/') + 1);
  }
  void* library = nullptr;  // stays open
  for (const std::string& place : {folder, folder + "../lib/", std::string()})
    if (library == nullptr) library = ::dlopen((place + "libstepc_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return str("libstepc_cuda.so cannot be opened ({})", ::dlerror());
  auto* const install = reinterpret_cast<InstallCudaHook*>(::dlsym(library, "stepc_install_cuda_hook"));
  if (install == nullptr) return "libstepc_cuda.so is of another version of stepc";
  install(&allocate, &unwrap);
  g_cuda_library = library;
  return {};
}
}  // namespace

LibraryMemoryScope::LibraryMemoryScope() : outer_(std::exchange(t_is_librarys, true)) {}
LibraryMemoryScope::~LibraryMemoryScope() { t_is_librarys = outer_; }

std::unique_ptr<DeviceGraph> make_device_graph(const c10::Device& device) {
  auto* const make = reinterpret_cast<MakeDeviceGraph*>(device_symbol(device, "make_graph"));
  return std::unique_ptr<DeviceGraph>(make == nullptr ? nullptr : make(device.index()));
}

std::unique_ptr<DeviceProgram> load_device_program(const c10::Device& device, DeviceCode code) {
  auto* const load = reinterpret_cast<LoadDeviceProgram*>(device_symbol(device, "load_program"));
  INTERNAL_CHECK(load != nullptr, "{} runs no generated kernels", device.str());
  return std::unique_ptr<DeviceProgram>(load(device.index(), &code));
}

void* device_symbol(const c10::Device& device, const std::string& name) {
  if (!device.is_cuda()) return ::dlsym(RTLD_DEFAULT, ("stepc_device_" + name).c_str());
  const bool is_open = install_device_hook(c10::kCUDA).empty() && g_cuda_library != nullptr;
  return is_open ? ::dlsym(g_cuda_library, ("stepc_cuda_" + name).c_str()) : nullptr;
}

void* native_stream(const c10::Stream& stream) {
  auto* const of = reinterpret_cast<void* (*)(const c10::Stream&)>(device_symbol(stream.device(), "stream"));
  USER_CHECK(of != nullptr, "CUDA's streams: {}",
             has_virtual_device() ? "this GPU is not there" : install_device_hook(c10::kCUDA));
  return of(stream);
}

bool has_device_hook(c10::DeviceType type) {
  return g_hooked[static_cast<size_t>(type)].load(std::memory_order_acquire);
}

bool has_any_device_hook() { return g_any_hooked.load(std::memory_order_acquire); }

std::string install_device_hook(c10::DeviceType type) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (has_device_hook(type)) return {};
  if (has_virtual_device() && type == c10::kCUDA) {
    // There is no memory to ask for.
  } else if (type == c10::kCUDA) {
    if (std::string why = install_cuda_hook(); !why.empty()) return why;
  } else if (type == c10::kPrivateUse1) {
    c10::Allocator* const base = c10::GetAllocator(type);
    c10::SetAllocator(type, new DeviceHook(base, type), 255);  // leaked: tensors are freed after static destructors
  } else {
    return str("stepc has no plans for {}", c10::DeviceTypeName(type, /*lower_case=*/true));
  }
  g_hooked[static_cast<size_t>(type)].store(true, std::memory_order_release);
  g_any_hooked.store(true, std::memory_order_release);
  return {};
}

}  // namespace stepc
