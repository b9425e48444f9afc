// A device for tests on machines without one, as a PyTorch backend under the key PrivateUse1. Its memory is mapped
// twice: where tensors say that it lies it can be neither read nor written, so host code that follows a device's
// pointer ends with a fault; kernels, which are the CPU's, find it at a fixed distance from there. Kernels run at once,
// but nothing of them is on the host before a synchronisation: see Unfinished.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "aten/device_facts.h"
#include "aten/device_hook.h"
#include "codegen/gpu_interpreter.h"

namespace {

constexpr auto kKind = c10::DeviceType::PrivateUse1;
std::atomic<bool> g_is_stopped{false};
// EMULATED_DEVICES says how many there are. A process has that of its LOCAL_RANK, the only one that runs anything.
c10::DeviceIndex number_in(const char* variable, c10::DeviceIndex otherwise) {
  const char* const said = std::getenv(variable);
  return said == nullptr ? otherwise : static_cast<c10::DeviceIndex>(std::atoi(said));
}
const c10::DeviceIndex kDevices = number_in("EMULATED_DEVICES", 1);
const c10::Device kDevice(kKind, kDevices == 1 ? c10::DeviceIndex{0} : number_in("LOCAL_RANK", 0));

// ---- memory

class Memory final : public c10::Allocator {
 public:
  static Memory& instance() {
    static auto* const memory = new Memory;  // tensors are freed after static destructors
    return *memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : take(bytes);
    return {memory, memory, &free_memory, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(seen_by_kernels(to), seen_by_kernels(from), bytes);
  }

  // Whether kernels find a device's memory there.
  [[nodiscard]] bool holds(const void* memory) const {
    const auto* const at = static_cast<const char*>(memory);
    return at >= kernels_ && at < kernels_ + kBytes;
  }
  void* seen_by_kernels(const void* memory) const {
    const auto* const at = static_cast<const char*>(memory);
    TORCH_CHECK(memory == nullptr || (at >= begin_ && at < begin_ + kBytes), "memory of another device");
    return memory == nullptr ? nullptr : kernels_ + (at - begin_);
  }

  // Of all that is taken.
  std::map<char*, std::string> content() {
    const std::lock_guard lock(mutex_);
    std::map<char*, std::string> out;
    for (const auto& [begin, bytes] : taken_) out.emplace(begin, std::string(kernels_ + (begin - begin_), bytes));
    return out;
  }
  // Bytes [begin, end), by where kernels find them, if they were taken then.
  void restore(const std::map<char*, std::string>& content, const char* begin, const char* end) {
    begin = begin_ + (begin - kernels_);
    end = begin_ + (end - kernels_);
    auto block = content.upper_bound(const_cast<char*>(begin));
    if (block != content.begin()) --block;
    for (; block != content.end() && block->first < end; ++block) {
      const char* const from = std::max<const char*>(begin, block->first);
      const char* const to = std::min<const char*>(end, block->first + block->second.size());
      if (from < to) std::memcpy(kernels_ + (from - begin_), block->second.data() + (from - block->first), to - from);
    }
  }

 private:
  static constexpr size_t kBytes = size_t{8} << 30;
  static constexpr size_t kAlignment = 512;

  Memory() {
    const int file = ::memfd_create("emulated device", 0);
    TORCH_CHECK(file >= 0 && ::ftruncate(file, kBytes) == 0, "no memory for the emulated device");
    begin_ = static_cast<char*>(::mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0));
    kernels_ = static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
    TORCH_CHECK(begin_ != MAP_FAILED && kernels_ != MAP_FAILED, "no memory for the emulated device");
    ::close(file);
    free_[begin_] = kBytes;
  }

  void* take(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::lock_guard lock(mutex_);
    for (auto& [begin, size] : free_) {
      if (size < bytes) continue;
      char* const memory = begin;
      const size_t left = size - bytes;
      free_.erase(memory);
      if (left > 0) free_[memory + bytes] = left;
      taken_[memory] = bytes;
      return memory;
    }
    TORCH_CHECK(false, "the emulated device is out of memory");
  }
  static void free_memory(void* memory) {
    if (memory == nullptr) return;
    Memory& self = instance();
    const std::lock_guard lock(self.mutex_);
    const auto taken = self.taken_.extract(static_cast<char*>(memory));
    TORCH_CHECK(!taken.empty(), "freed twice");
    auto at = self.free_.emplace(taken.key(), taken.mapped()).first;
    if (const auto next = std::next(at); next != self.free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      self.free_.erase(next);
    }
    if (at == self.free_.begin()) return;
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      self.free_.erase(at);
    }
  }

  std::mutex mutex_;
  char* begin_ = nullptr;    // where tensors are
  char* kernels_ = nullptr;  // the same bytes, for kernels
  std::map<char*, size_t> free_, taken_;
};

// Asynchronous copies between the device and page-locked memory, until a synchronisation. What is on its way to the
// host is not there before: all its bits are set until then, which is NaN or -1. What is on its way to the device must
// stay as it was when the copy was asked for. Neither holds the memory.
class Unfinished {
 public:
  static Unfinished& instance() {
    static auto* const unfinished = new Unfinished;
    return *unfinished;
  }

  // The host has the copy's result already. `before`: what was there, which the device has read by then.
  void to_host(char* memory, size_t bytes, const std::string& before) {
    const std::lock_guard lock(mutex_);
    std::erase_if(copies_, [&](const Copy& copy) { return copy.memory == memory && copy.bytes == before; });
    copies_.push_back({memory, std::string(memory, bytes), true});
    std::memset(memory, 0xff, bytes);
  }
  void to_device(char* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    copies_.push_back({memory, std::string(memory, bytes), false});
  }
  void finish() {
    std::vector<Copy> copies;
    {
      const std::lock_guard lock(mutex_);
      copies = std::exchange(copies_, {});
    }
    for (const auto& [memory, bytes, is_to_host] : copies) {
      if (is_to_host) std::memcpy(memory, bytes.data(), bytes.size());
      TORCH_CHECK(std::memcmp(memory, bytes.data(), bytes.size()) == 0, bytes.size(),
                  " bytes of page-locked memory were changed while they were copied to the device");
    }
  }
  void forget(const char* begin, const char* end) {
    const std::lock_guard lock(mutex_);
    std::erase_if(copies_, [&](const Copy& copy) { return copy.memory >= begin && copy.memory < end; });
  }

 private:
  struct Copy {
    char* memory;
    std::string bytes;
    bool is_to_host;
  };
  std::mutex mutex_;
  std::vector<Copy> copies_;
};

// Page-locked memory of the host, from which and to which copies may be asynchronous.
class Pinned final : public c10::Allocator {
 public:
  static Pinned& instance() {
    static auto* const pinned = new Pinned;
    return *pinned;
  }

  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kAlignment = 64;
    void* const memory = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
    TORCH_CHECK(memory != nullptr, "no page-locked memory");
    const std::lock_guard lock(mutex_);
    ends_[static_cast<char*>(memory)] = static_cast<char*>(memory) + bytes;
    return {memory, memory, &free_memory, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  [[nodiscard]] bool holds(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto* const at = static_cast<const char*>(memory);
    const auto after = ends_.upper_bound(at);
    return after != ends_.begin() && at < std::prev(after)->second;
  }

 private:
  static void free_memory(void* memory) {
    Pinned& self = instance();
    const std::lock_guard lock(self.mutex_);
    const auto taken = self.ends_.extract(static_cast<char*>(memory));
    Unfinished::instance().forget(taken.key(), taken.mapped());
    std::free(memory);
  }

  std::mutex mutex_;
  std::map<const char*, const char*> ends_;  // by where they begin
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kKind; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void synchronizeDevice(c10::DeviceIndex) const override { Unfinished::instance().finish(); }
  void synchronizeStream(const c10::Stream&) const override { Unfinished::instance().finish(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  // All streams are one, and what an event marks is over, unless a test has stopped the device. It knows when that was.
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Moment;
    *static_cast<Moment*>(*event) = Moment::clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return !g_is_stopped; }
  void synchronizeEvent(void*) const override { Unfinished::instance().finish(); }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Moment*>(end) - *static_cast<Moment*>(begin)).count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }

 private:
  using Moment = std::chrono::steady_clock::time_point;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* memory) const override { return Pinned::instance().holds(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &Pinned::instance(); }
};

// ---- calls

void touch(const void* begin, size_t bytes);  // Graph's

// The same bytes as the device's tensors, as CPU tensors.
class OnCpu {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kKind) return tensor;
    const c10::Storage& storage = tensor.storage();
    auto& alias = aliases_[storage.unsafeGetStorageImpl()];
    if (!alias.defined()) {
      void* const memory = Memory::instance().seen_by_kernels(storage.data());
      alias = at::empty({0}, at::TensorOptions().dtype(at::kByte));
      alias.set_(c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(storage.nbytes()),
                              c10::DataPtr(memory, c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU), true));
      devices_.emplace(alias.storage().unsafeGetStorageImpl(), storage);
    }
    auto out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(alias.storage()),
                                                        c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    out.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) out.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (tensor.numel() > 0) {
      int64_t last = 0;
      for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
      touch(out.const_data_ptr(), static_cast<size_t>(last + 1) * tensor.element_size());
    }
    originals_.emplace(out.unsafeGetTensorImpl(), tensor);
    return out;
  }

  // What a call has made, on the device: an argument is itself, a window on one stays a window.
  at::Tensor back(const at::Tensor& made) const {
    if (!made.defined()) return made;
    if (const auto found = originals_.find(made.unsafeGetTensorImpl()); found != originals_.end()) {
      if (made.sizes() == found->second.sizes()) return found->second;
      OnCpu kernel;  // a result that was given too small
      kernel.of(found->second.resize_(made.sizes())).copy_(made);
      return found->second;
    }
    const auto device = devices_.find(made.storage().unsafeGetStorageImpl());
    if (device != devices_.end()) {
      auto out = at::detail::make_tensor<c10::TensorImpl>(
          c10::Storage(device->second), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), made.dtype());
      out.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
      return out;
    }
    at::Tensor out = at::empty_strided(made.sizes(), made.strides(), made.options().device(kDevice));
    OnCpu kernel;
    if (made.numel() > 0) kernel.of(out).copy_(made);
    return out;
  }

 private:
  std::map<c10::StorageImpl*, at::Tensor> aliases_;
  std::map<c10::StorageImpl*, c10::Storage> devices_;  // by alias
  std::map<c10::TensorImpl*, at::Tensor> originals_;
};

// What calls of a recording do, for its launches. Nothing of a device's runs while it is recorded: here all of it does,
// and what was in its operands is put back at the end. (An exchange may go on elsewhere meanwhile.)
class Graph final : public stepc::DeviceGraph {
 public:
  void begin() override {
    TORCH_CHECK(g_recorded == nullptr, "a recording inside another one");
    before_ = Memory::instance().content();
    draws_ = at::detail::getDefaultCPUGenerator().get_state();
    g_recorded = this;
  }
  void end() override {
    g_recorded = nullptr;
    for (const auto& [from, to] : std::exchange(touched_, {})) Memory::instance().restore(before_, from, to);
    before_.clear();
    at::Generator(at::detail::getDefaultCPUGenerator()).set_state(draws_);
  }
  void abandon() noexcept override {
    if (g_recorded == this) end();
  }
  void launch() override {
    for (const auto& call : calls_) call();
  }

  // `run` has run, as part of what is recorded, if something is. It holds nothing of the device's own.
  static void note(std::function<void()> run) {
    if (g_recorded != nullptr) g_recorded->calls_.push_back(std::move(run));
  }
  static bool is_recording() { return g_recorded != nullptr; }
  // What is recorded may change these bytes, where kernels find them.
  static void touch(const void* begin, size_t bytes) {
    const auto* const at = static_cast<const char*>(begin);
    if (g_recorded != nullptr && bytes > 0) g_recorded->touched_.emplace_back(at, at + bytes);
  }
  static void refuse(bool reads_host) {
    TORCH_CHECK(g_recorded == nullptr || !reads_host, "operation not permitted when stream is capturing");
  }

 private:
  static thread_local Graph* g_recorded;
  std::vector<std::function<void()>> calls_;
  std::map<char*, std::string> before_;
  std::vector<std::pair<const char*, const char*>> touched_;
  at::Tensor draws_;
};
thread_local Graph* Graph::g_recorded = nullptr;
void touch(const void* begin, size_t bytes) { Graph::touch(begin, bytes); }

// A generated kernel, run by the interpreter of its mapping. It gets what a device's kernel gets: where its buffers
// begin, on the device.
class Program final : public stepc::DeviceProgram {
 public:
  explicit Program(stepc::DeviceCode code) : mapping_(std::move(code.mapping)) {}

  void launch(std::span<void* const> arguments) override {
    const std::vector<stepc::LoopBuffer>& buffers = mapping_->loops.buffers;
    std::vector<std::span<uint8_t>> memory;
    for (size_t k = 0; k + 1 < arguments.size(); ++k) {
      check_aligned(arguments[k], kOfBuffers);
      const auto bytes = static_cast<size_t>(buffers[k].count * stepc::size_of(buffers[k].dtype));
      auto* const begin = static_cast<uint8_t*>(Memory::instance().seen_by_kernels(arguments[k]));
      Graph::touch(begin, bytes);
      memory.emplace_back(begin, bytes);
    }
    check_aligned(arguments.back(), kOfScratch);
    const auto run = [mapping = mapping_, memory] {
      const stepc::GpuFindings found = stepc::interpret(*mapping, memory);
      TORCH_CHECK(found.problem.empty(), found.problem, " in\n", stepc::to_text(*mapping));
    };
    run();
    Graph::note(run);
  }

 private:
  static constexpr uintptr_t kOfBuffers = 16, kOfScratch = 64;
  void check_aligned(const void* memory, uintptr_t alignment) const {
    TORCH_CHECK(reinterpret_cast<uintptr_t>(memory) % alignment == 0, "misaligned address ", memory, " in\n",
                stepc::to_text(*mapping_));
  }
  std::shared_ptr<const stepc::GpuProgram> mapping_;
};

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  OnCpu cpu;
  std::vector<at::Tensor> kept;
  const size_t count = op.schema().arguments().size();
  const size_t begin = stack->size() - count;
  const bool takes_any =
      op.schema().name().starts_with("aten::_foreach") || op.schema().name().find("index") != std::string::npos;
  const auto take = [&](const at::Tensor& tensor) {
    TORCH_CHECK(takes_any || !tensor.defined() || tensor.dim() == 0 || tensor.device() == kDevice,
                "Expected all tensors to be on the same device, but found at least two devices, cpu and ", kDevice);
    if (!tensor.defined() || tensor.device() == kDevice || !Graph::is_recording())
      return kept.emplace_back(cpu.of(tensor));
    // A number of the host's: a recording has it as it is now.
    auto memory = std::make_shared<std::string>(tensor.nbytes(), '\0');
    at::Tensor copy = at::from_blob(
        memory->data(), tensor.sizes(), [memory](void*) {}, tensor.options());
    copy.copy_(tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return kept.emplace_back(copy);
  };
  for (size_t a = begin; a < stack->size(); ++a) {
    c10::IValue& value = (*stack)[a];
    if (value.isTensor()) {
      value = take(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(take(one));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& one : value.toOptionalTensorVector())
        list.push_back(one ? std::optional<at::Tensor>(take(*one)) : std::nullopt);
      value = std::move(list);
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    }
  }
  const bool reads_host = op.schema().name() == "aten::_local_scalar_dense";
  Graph::refuse(reads_host);
  if (reads_host) Unfinished::instance().finish();
  const std::vector<c10::IValue> given(stack->begin() + static_cast<ssize_t>(begin), stack->end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const size_t first = stack->size() - op.schema().returns().size();
  std::vector<std::tuple<size_t, size_t, at::Tensor>> made;  // result, element, its place
  const auto back = [&](const at::Tensor& one, size_t result, size_t element) {
    at::Tensor on_device = cpu.back(one);
    if (one.defined() && one.numel() > 0 && !Memory::instance().holds(one.const_data_ptr()))
      made.emplace_back(result, element, OnCpu().of(on_device));
    return on_device;
  };
  for (size_t r = first; r < stack->size(); ++r) {
    c10::IValue& value = (*stack)[r];
    if (value.isTensor()) {
      value = back(value.toTensor(), r - first, 0);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      const std::vector<at::Tensor> results = value.toTensorVector();
      for (size_t e = 0; e < results.size(); ++e) list.push_back(back(results[e], r - first, e));
      value = std::move(list);
    }
  }
  Graph::note([op, given, made] {
    torch::jit::Stack again = given;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &again);
    for (const auto& [result, element, place] : made)
      place.copy_(again[result].isTensor() ? again[result].toTensor() : again[result].toTensorVector()[element]);
  });
}

// Another device, which has memory and runs nothing.
struct Second final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = Memory::instance().allocate(bytes);
    memory.unsafe_set_device(c10::Device(kKind, kDevice.index() == 0 ? 1 : 0));
    return memory;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    Memory::instance().copy_data(to, from, bytes);
  }
};
at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  static Second second;
  const bool is_other = device && device->has_index() && device->index() != kDevice.index();
  c10::Allocator* const allocator = is_other ? &second : c10::GetAllocator(kKind);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   format);
}
at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           c10::GetAllocator(kKind), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool is_to_host = to.device() != kDevice;
  const at::Tensor& host = is_to_host ? to : from;
  const bool crosses = host.device() != kDevice;
  Graph::refuse(crosses);
  const bool is_asynchronous =
      crosses && non_blocking && host.is_contiguous() && Pinned::instance().holds(host.const_data_ptr());
  if (crosses && !is_asynchronous) Unfinished::instance().finish();
  auto* const memory = is_asynchronous ? static_cast<char*>(const_cast<void*>(host.const_data_ptr())) : nullptr;
  const std::string before = is_asynchronous ? std::string(memory, host.nbytes()) : std::string();
  OnCpu cpu;
  const auto run = [target = cpu.of(to), source = cpu.of(from)] { target.copy_(source); };
  run();
  Graph::note(run);
  if (!is_asynchronous) return to;
  if (is_to_host)
    Unfinished::instance().to_host(memory, host.nbytes(), before);
  else
    Unfinished::instance().to_device(memory, host.nbytes());
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to.resize_(from.sizes()), false);
}
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const auto concrete = C10_AS_INTARRAYREF_SLOW(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(concrete, self.element_size(), self.storage_offset());
  if (bytes > self.storage().nbytes()) {
    c10::DataPtr memory = c10::GetAllocator(kKind)->allocate(bytes);
    Memory::instance().copy_data(memory.get(), self.storage().data(), self.storage().nbytes());
    self.storage().set_data_ptr_noswap(std::move(memory));
    self.storage().set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(concrete);
  if (format.value_or(at::MemoryFormat::Contiguous) != at::MemoryFormat::Preserve)
    self.unsafeGetTensorImpl()->empty_tensor_restride(format.value_or(at::MemoryFormat::Contiguous));
  return self;
}
at::Tensor& set(at::Tensor& self, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                c10::SymIntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  const auto concrete = C10_AS_INTARRAYREF_SLOW(sizes);
  at::DimVector laid(concrete.size(), 1);
  for (size_t d = concrete.size(); d-- > 1;) laid[d - 1] = laid[d] * concrete[d];
  const at::IntArrayRef given = C10_AS_INTARRAYREF_SLOW(strides);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(concrete, given.empty() ? at::IntArrayRef(laid) : given,
                                                    offset.expect_int());
  return self;
}
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  Graph::refuse(true);
  OnCpu cpu;
  const std::optional<at::Tensor> on_cpu = bias ? std::optional<at::Tensor>(cpu.of(*bias)) : std::nullopt;
  return cpu.back(at::convolution_symint(cpu.of(input), cpu.of(weight), on_cpu, stride, padding, dilation, transposed,
                                         output_padding, std::move(groups)));
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  Graph::refuse(true);
  OnCpu cpu;
  const c10::SymInt channels[] = {gradient.sym_size(1)};
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward_symint(cpu.of(gradient), cpu.of(input), cpu.of(weight), c10::SymIntArrayRef(channels),
                                      stride, padding, dilation, transposed, output_padding, std::move(groups), wanted);
  return {cpu.back(of_input), cpu.back(of_weight), cpu.back(of_bias)};
}

// Windows look at no memory, which may not be there.
at::Tensor window(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                      self.key_set(), self.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return out;
}
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return window(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                offset ? offset->expect_int() : self.storage_offset());
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  return as_strided(self, sizes, strides, std::nullopt);
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  const auto wanted = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(sizes), self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), wanted);
  TORCH_CHECK(strides.has_value(), "view size is not compatible with input tensor's size and stride");
  return window(self, wanted, *strides, self.storage_offset());
}

at::Tensor& set_all(at::Tensor& self, c10::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes()) / self.element_size();
  const c10::SymInt sizes[] = {count};
  return set(self, std::move(storage), 0, sizes, {});
}
}  // namespace

namespace at::detail {
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
}
static const bool g_registered = [] {
  c10::register_privateuse1_backend("emulated");
  c10::SetAllocator(kKind, &Memory::instance());
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // for good
  return true;
}();
// An H100 that interprets its kernels; EMULATED_CARD="capability free total name" says that it is another card.
extern "C" __attribute__((visibility("default"))) bool stepc_device_facts(c10::DeviceIndex, stepc::DeviceFacts* facts) {
  const stepc::GpuShape h100;
  facts->compute_capability = 90;
  facts->multiprocessors = h100.multiprocessors;
  facts->shared_bytes = h100.shared_bytes;
  facts->takes_machine_code = false;
  const char* const said = std::getenv("EMULATED_CARD");
  if (said == nullptr) return true;
  std::istringstream words(said);
  words >> facts->compute_capability >> facts->free_bytes >> facts->total_bytes >> std::ws;
  std::getline(words, facts->name);
  facts->id = facts->name;
  return true;
}
// A kernel that is launched past PyTorch.
extern "C" __attribute__((visibility("default"))) void emulated_device_double(float* memory, int64_t count) {
  auto* const there = static_cast<float*>(Memory::instance().seen_by_kernels(memory));
  for (int64_t i = 0; i < count; ++i) there[i] *= 2;
}
extern "C" __attribute__((visibility("default"))) void emulated_device_stop(bool stops) { g_is_stopped = stops; }
extern "C" __attribute__((visibility("default"))) stepc::DeviceGraph* stepc_device_make_graph(c10::DeviceIndex) {
  return new Graph;
}
extern "C" __attribute__((visibility("default"))) stepc::DeviceProgram* stepc_device_load_program(
    c10::DeviceIndex, stepc::DeviceCode* code) {
  return new Program(std::move(*code));
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("view", &view);
  library.impl("resize_", &resize);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("set_.source_Storage", &set_all);
  library.impl("set_.source_Storage_storage_offset", &set);
}
