#include "aten/device_facts.h"

#include <dlfcn.h>

#include <ATen/Context.h>

#include "aten/cuda_library.h"
#include "base/check.h"

namespace stepc {

namespace {
constexpr int kOldestCapability = 75;  // for which PyTorch's wheels for CUDA 13 have kernels
constexpr int kMajor = 1000, kMinor = 10;

std::string version_text(int version) { return str("{}.{}", version / kMajor, version % kMajor / kMinor); }
}  // namespace

std::optional<DeviceFacts> device_facts(const c10::Device& device) {
  auto* const fill = reinterpret_cast<FillDeviceFacts*>(device_symbol(device, "facts"));
  DeviceFacts facts;
  if (device.is_cpu() || fill == nullptr || !fill(device.index(), &facts)) return std::nullopt;
  return facts;
}

CudaVersions cuda_versions() {
  CudaVersions driver;
  driver.wanted = static_cast<int>(at::Context::versionCUDART());
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays open
  if (library == nullptr) return driver;
  auto* const version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "cuDriverGetVersion"));
  driver.is_there = version != nullptr && version(&driver.version) == 0;
  return driver;
}

std::string trouble_with(const CudaVersions& driver) {
  if (!driver.is_there) return "no NVIDIA driver is on this machine (libcuda.so.1); install one";
  if (driver.version / kMajor < driver.wanted / kMajor)
    return str(
        "the NVIDIA driver runs CUDA up to {}, and this PyTorch is for CUDA {}; install a newer driver, or a "
        "PyTorch for CUDA {}",
        version_text(driver.version), version_text(driver.wanted), driver.version / kMajor);
  return {};
}

std::string trouble_with(const DeviceFacts& device) {
  if (device.compute_capability == 0 || device.compute_capability >= kOldestCapability) return {};
  return str("{} (sm_{}) is too old: PyTorch has kernels for sm_{} and newer", device.name, device.compute_capability,
             kOldestCapability);
}

std::string name_of(const c10::Device& device, const std::optional<DeviceFacts>& facts) {
  return facts && !facts->name.empty() ? str("{} ({})", device.str(), facts->name) : device.str();
}

}  // namespace stepc
