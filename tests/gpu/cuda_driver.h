// The CUDA driver, where there is a device: loaded when it is asked for, so that nothing links to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "base/check.h"

namespace stepc {

class CudaDriver {
 public:
  CudaDriver() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    int devices = 0;
    if (library_ == nullptr || call<int(unsigned)>("cuInit")(0) != 0 ||
        call<int(int*)>("cuDeviceGetCount")(&devices) != 0 || devices == 0)
      return;
    void* context = nullptr;
    found_ = call<int(int*, int)>("cuDeviceGet")(&device_, 0) == 0 &&
             call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device_) == 0 &&
             call<int(void*)>("cuCtxSetCurrent")(context) == 0;
  }
  [[nodiscard]] bool found() const { return found_; }
  // 90: sm_90.
  [[nodiscard]] int architecture() const {
    constexpr int kMajor = 75;
    constexpr int kMinor = 76;
    return 10 * attribute(kMajor) + attribute(kMinor);
  }

  void* load(const std::string& code) const {
    void* loaded = nullptr;
    check(call<int(void**, const void*)>("cuModuleLoadData")(&loaded, code.data()), "cuModuleLoadData");
    return loaded;
  }
  uint64_t allocate(size_t bytes) const {
    uint64_t memory = 0;
    check(call<int(uint64_t*, size_t)>("cuMemAlloc_v2")(&memory, std::max<size_t>(bytes, 1)), "cuMemAlloc");
    return memory;
  }
  void free(uint64_t memory) const { check(call<int(uint64_t)>("cuMemFree_v2")(memory), "cuMemFree"); }
  void copy_in(uint64_t to, const void* from, size_t bytes) const {
    check(call<int(uint64_t, const void*, size_t)>("cuMemcpyHtoD_v2")(to, from, bytes), "cuMemcpyHtoD");
  }
  void copy_out(void* to, uint64_t from, size_t bytes) const {
    check(call<int(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2")(to, from, bytes), "cuMemcpyDtoH");
  }
  // A kernel whose parameters are all pointers.
  void launch(void* loaded, const std::string& name, std::vector<uint64_t> parameters, int64_t blocks, int64_t threads,
              int64_t shared_bytes) const {
    void* function = nullptr;
    check(call<int(void**, void*, const char*)>("cuModuleGetFunction")(&function, loaded, name.c_str()), name);
    constexpr int kMostShared = 8;
    check(call<int(void*, int, int)>("cuFuncSetAttribute")(function, kMostShared, static_cast<int>(shared_bytes)),
          name);
    std::vector<void*> arguments;
    for (uint64_t& parameter : parameters) arguments.push_back(&parameter);
    using Launch =
        int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    check(call<Launch>("cuLaunchKernel")(function, static_cast<unsigned>(blocks), 1, 1, static_cast<unsigned>(threads),
                                         1, 1, static_cast<unsigned>(shared_bytes), nullptr, arguments.data(), nullptr),
          name);
    check(call<int()>("cuCtxSynchronize")(), name);
  }

 private:
  template <class F>
  F* call(const char* name) const {
    void* found = dlsym(library_, name);
    INTERNAL_CHECK(found != nullptr, "the driver has no {}", name);
    return reinterpret_cast<F*>(found);  // NOLINT: what dlsym gives
  }
  static void check(int result, const std::string& what) { INTERNAL_CHECK_EQ(result, 0, "{}", what); }
  [[nodiscard]] int attribute(int which) const {
    int value = 0;
    check(call<int(int*, int, int)>("cuDeviceGetAttribute")(&value, which, device_), "cuDeviceGetAttribute");
    return value;
  }

  void* library_ = nullptr;
  int device_ = 0;
  bool found_ = false;
};

}  // namespace stepc
