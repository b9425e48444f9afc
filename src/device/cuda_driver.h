// The CUDA driver, where there is a device: loaded when it is asked for, so that nothing links to it. Every call that
// fails is an InternalError with the driver's own words; after most of them the process can do no more on the device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include "base/check.h"

namespace stepc {

class CudaDriver {
 public:
  // The driver's numbers of what one may ask of a device or of a kernel.
  enum Attribute : uint8_t { kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75, kMinor = 76, kMostSharedBytes = 97 };
  enum KernelAttribute : uint8_t { kLocalBytes = 3, kRegisters = 4, kSharedBytes = 8 };
  struct Kernel {
    void* handle = nullptr;
    std::string name;
    int64_t blocks = 0, threads = 0, shared_bytes = 0;
  };

  using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                     void**);

  // The driver alone, for a process whose current context is somebody else's.
  struct OfCurrentContext {};
  explicit CudaDriver(OfCurrentContext) { open(); }
  // With the first device.
  CudaDriver() {
    open();
    if (library_ == nullptr) return;
    int devices = 0;
    void* context = nullptr;
    if (start(call<int(unsigned)>("cuInit")(0), "cuInit") &&
        start(call<int(int*)>("cuDeviceGetCount")(&devices), "cuDeviceGetCount")) {
      if (devices == 0) why_not_ = "the driver has no device";
      if (devices != 0 && start(call<int(int*, int)>("cuDeviceGet")(&device_, 0), "cuDeviceGet") &&
          start(call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device_), "cuDevicePrimaryCtxRetain"))
        start(call<int(void*)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
    }
  }
  // Why nothing runs here, in one line; empty: a device is there.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

  // ---- the device

  [[nodiscard]] int attribute(Attribute which) const {
    int value = 0;
    check(call<int(int*, int, int)>("cuDeviceGetAttribute")(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  }
  // 90: sm_90.
  [[nodiscard]] int architecture() const { return 10 * attribute(kMajor) + attribute(kMinor); }
  [[nodiscard]] std::string name() const {
    std::string out(256, '\0');
    check(call<int(char*, int, int)>("cuDeviceGetName")(out.data(), 256, device_), "cuDeviceGetName");
    return out.c_str();
  }
  [[nodiscard]] int version() const {
    int out = 0;
    check(call<int(int*)>("cuDriverGetVersion")(&out), "cuDriverGetVersion");
    return out;
  }
  [[nodiscard]] std::pair<size_t, size_t> free_and_total_bytes() const {
    std::pair<size_t, size_t> out;
    check(call<int(size_t*, size_t*)>("cuMemGetInfo_v2")(&out.first, &out.second), "cuMemGetInfo");
    return out;
  }

  // ---- memory

  [[nodiscard]] uint64_t allocate(size_t bytes) const {
    uint64_t memory = 0;
    check(call<int(uint64_t*, size_t)>("cuMemAlloc_v2")(&memory, std::max<size_t>(bytes, 1)),
          str("cuMemAlloc of {} bytes", bytes));
    return memory;
  }
  void free(uint64_t memory) const { check(call<int(uint64_t)>("cuMemFree_v2")(memory), "cuMemFree"); }
  void copy_in(uint64_t to, const void* from, size_t bytes) const {
    check(call<int(uint64_t, const void*, size_t)>("cuMemcpyHtoD_v2")(to, from, bytes), "cuMemcpyHtoD");
  }
  void copy_out(void* to, uint64_t from, size_t bytes) const {
    check(call<int(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2")(to, from, bytes), "cuMemcpyDtoH");
  }
  void copy_on_device(uint64_t to, uint64_t from, size_t bytes) const {
    check(call<int(uint64_t, uint64_t, size_t, void*)>("cuMemcpyDtoDAsync_v2")(to, from, bytes, nullptr),
          "cuMemcpyDtoDAsync");
  }
  void fill(uint64_t to, uint8_t value, size_t bytes) const {
    check(call<int(uint64_t, unsigned char, size_t, void*)>("cuMemsetD8Async")(to, value, bytes, nullptr),
          "cuMemsetD8Async");
  }

  // ---- kernels

  [[nodiscard]] void* load(const std::string& code) const {
    void* loaded = nullptr;
    check(call<int(void**, const void*)>("cuModuleLoadData")(&loaded, code.data()), "cuModuleLoadData");
    return loaded;
  }
  void unload(void* loaded) const { check(call<int(void*)>("cuModuleUnload")(loaded), "cuModuleUnload"); }
  [[nodiscard]] Kernel kernel(void* loaded, const std::string& name, int64_t blocks, int64_t threads,
                              int64_t shared_bytes) const {
    Kernel out{nullptr, name, blocks, threads, shared_bytes};
    check(call<int(void**, void*, const char*)>("cuModuleGetFunction")(&out.handle, loaded, name.c_str()),
          str("cuModuleGetFunction of {}", name));
    check(call<int(void*, int, int)>("cuFuncSetAttribute")(out.handle, kSharedBytes, static_cast<int>(shared_bytes)),
          str("{} bytes of shared memory for {}", shared_bytes, name));
    return out;
  }
  [[nodiscard]] int attribute(const Kernel& kernel, KernelAttribute which) const {
    int value = 0;
    check(call<int(int*, int, void*)>("cuFuncGetAttribute")(&value, which, kernel.handle), "cuFuncGetAttribute");
    return value;
  }
  [[nodiscard]] int blocks_a_multiprocessor(const Kernel& kernel) const {
    int value = 0;
    check(call<int(int*, void*, int, size_t)>("cuOccupancyMaxActiveBlocksPerMultiprocessor")(
              &value, kernel.handle, static_cast<int>(kernel.threads), static_cast<size_t>(kernel.shared_bytes)),
          "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    return value;
  }
  // `arguments`: where each of its parameters lies, all pointers. On the default stream where none is given. A kernel
  // of no blocks has nothing to do, and the driver refuses it.
  void launch(const Kernel& kernel, std::span<void*> arguments, void* stream = nullptr) const {
    if (kernel.blocks == 0) return;
    const int result =
        launch_(kernel.handle, static_cast<unsigned>(kernel.blocks), 1, 1, static_cast<unsigned>(kernel.threads), 1, 1,
                static_cast<unsigned>(kernel.shared_bytes), stream, arguments.data(), nullptr);
    if (result == 0) return;
    check(result, str("launch of {}, {} blocks of {} threads with {} shared bytes", kernel.name, kernel.blocks,
                      kernel.threads, kernel.shared_bytes));
  }
  void launch(const Kernel& kernel, std::vector<uint64_t> parameters) const {
    std::vector<void*> arguments;
    for (uint64_t& parameter : parameters) arguments.push_back(&parameter);
    launch(kernel, arguments);
  }

  // ---- time

  // Until all that was started is done: a kernel that never ends is found here.
  void wait(double seconds) const {
    constexpr int kNotReady = 600;
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      const int result = call<int(void*)>("cuStreamQuery")(nullptr);
      if (result != kNotReady) return check(result, "kernels that were launched");
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      INTERNAL_CHECK(passed.count() < seconds, "kernels run still after {} s", seconds);
    }
  }
  [[nodiscard]] void* event() const {
    void* out = nullptr;
    check(call<int(void**, unsigned)>("cuEventCreate")(&out, 0), "cuEventCreate");
    return out;
  }
  void record(void* event) const { check(call<int(void*, void*)>("cuEventRecord")(event, nullptr), "cuEventRecord"); }
  void destroy(void* event) const { check(call<int(void*)>("cuEventDestroy_v2")(event), "cuEventDestroy"); }
  [[nodiscard]] double seconds_between(void* begin, void* end) const {
    float milliseconds = 0;
    check(call<int(float*, void*, void*)>("cuEventElapsedTime")(&milliseconds, begin, end), "cuEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  void open() {
    for (const char* name :
         {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW);
      if (library_ == nullptr && why_not_.empty()) why_not_ = dlerror();
    }
    if (library_ == nullptr) return;
    why_not_.clear();
    launch_ = call<Launch>("cuLaunchKernel");
  }
  template <class F>
  F* call(const char* name) const {
    void* found = dlsym(library_, name);
    INTERNAL_CHECK(found != nullptr, "the driver has no {}", name);
    return reinterpret_cast<F*>(found);  // NOLINT: what dlsym gives
  }
  [[nodiscard]] std::string words(int result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    call<int(int, const char**)>("cuGetErrorName")(result, &name);
    call<int(int, const char**)>("cuGetErrorString")(result, &text);
    return str("{} ({}: {})", result, name == nullptr ? "?" : name, text == nullptr ? "?" : text);
  }
  bool start(int result, const char* what) {
    if (result != 0) why_not_ = str("{}: error {}", what, words(result));
    return result == 0;
  }
  void check(int result, const std::string& what) const {
    INTERNAL_CHECK(result == 0, "{}: error {}", what, words(result));
  }

  void* library_ = nullptr;
  Launch* launch_ = nullptr;
  std::string why_not_;
  int device_ = 0;
};

}  // namespace stepc
