// What cpu_hook.h is for the host's memory, for that of a device: it stands in front of the device's allocator and asks
// the AllocationClient of the calling thread. Installed once a process and kind of device, never removed.
//
// Depends on LibTorch internals: the table of allocators by kind of device, and PyTorch's CUDA kernels asking
// c10::cuda::CUDACachingAllocator::allocator instead, which libstepc_cuda.so replaces (device/cuda_hook.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace stepc {

// Idempotent, thread-safe. Returns why plans cannot have memory of such a device; empty if they can.
std::string install_device_hook(c10::DeviceType type);
bool has_device_hook(c10::DeviceType type);
bool has_any_device_hook();

// Until it ends, the calling thread's device memory comes from the device's own allocator, and no client hears of it:
// what libraries take once, to get ready.
class LibraryMemoryScope {
 public:
  LibraryMemoryScope();
  ~LibraryMemoryScope();
  LibraryMemoryScope(const LibraryMemoryScope&) = delete;
  LibraryMemoryScope& operator=(const LibraryMemoryScope&) = delete;

 private:
  bool outer_;
};

// Calls that a device takes down instead of running them, to run them all at one launch. One thread makes them and
// this.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // What is called on the device from here to end() is taken down. Libraries get ready first.
  virtual void begin() = 0;
  virtual void end() = 0;
  // After begin(), where a call cannot be taken down: none of them has run, and the graph is of no use.
  virtual void abandon() noexcept = 0;
  // On the thread's current stream.
  virtual void launch() = 0;
};
// nullptr: such a device has none.
std::unique_ptr<DeviceGraph> make_device_graph(const c10::Device& device);

// ---- generated kernels

struct GpuProgram;  // codegen/gpu_mapping.h

// A generated program for a device: its kernels, which run one after the other.
struct DeviceCode {
  struct Kernel {
    std::string name;
    int64_t blocks = 0, threads = 0, shared_bytes = 0;
  };
  std::string machine_code;  // empty where the device takes none
  std::vector<Kernel> kernels;
  std::shared_ptr<const GpuProgram> mapping;
};
class DeviceProgram {
 public:
  virtual ~DeviceProgram() = default;
  // All its kernels on the thread's current stream. `arguments`: where the program's inputs, its outputs and its
  // scratch memory begin on the device, as kernels get them by value.
  virtual void launch(std::span<void* const> arguments) = 0;
};
// Throws where the device refuses it.
std::unique_ptr<DeviceProgram> load_device_program(const c10::Device& device, DeviceCode code);

// What the hook of a kind of device is given (device/cuda_hook.cpp). The first: `bytes` bytes from the thread's client,
// else from `base`. The second: what `base` gave, of memory that the first has wrapped to hear of its end; else
// `memory`.
using DeviceAllocate = c10::DataPtr(c10::Allocator& base, c10::DeviceType type, size_t bytes);
using DeviceUnwrap = const c10::DataPtr&(const c10::DataPtr& memory);
using InstallCudaHook = void(DeviceAllocate*, DeviceUnwrap*);
using MakeDeviceGraph = DeviceGraph*(c10::DeviceIndex);
// The result is the caller's.
using LoadDeviceProgram = DeviceProgram*(c10::DeviceIndex, DeviceCode*);

}  // namespace stepc
