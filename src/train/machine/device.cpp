#include "train/machine/device.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <dlfcn.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "base/check.h"

namespace stepc::train {

namespace {
std::optional<at::Device> parsed(const std::string& name) {
  try {
    return at::Device(name);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}
}  // namespace

at::Device use_device(const std::string& what, const std::string& name) {
  const std::optional<at::Device> device = parsed(name);
  USER_CHECK(device && !device->is_meta(), "{} = \"{}\" is no device; give \"cpu\", \"cuda\" or \"cuda:1\"", what,
             name);
  if (device->is_cpu()) return at::kCPU;
  // What stepc is linked with names CUDA's part of PyTorch nowhere.
  if (device->is_cuda() && !c10::impl::hasDeviceGuardImpl(at::kCUDA))
    static_cast<void>(::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL));
  USER_CHECK(c10::impl::hasDeviceGuardImpl(device->type()),
             "{} = \"{}\": this PyTorch is built without it; install one that is made for it, or choose \"cpu\"", what,
             name);
  const auto* const devices = c10::impl::getDeviceGuardImpl(device->type());
  const int count = devices->deviceCount();
  USER_CHECK(count > 0, "{} = \"{}\": no such device or no driver for it is here; choose \"cpu\"", what, name);
  USER_CHECK(device->index() < count, "{} = \"{}\": there are {} of them, from 0 on", what, name, count);
  const at::Device chosen(device->type(), std::max<c10::DeviceIndex>(device->index(), 0));
  devices->setDevice(chosen);
  return chosen;
}

std::string unused_gpu(const at::Device& device) {
  if (!device.is_cpu() || !std::filesystem::exists("/dev/nvidiactl")) return {};
  return "this machine has an NVIDIA GPU: train.device = \"cuda\" trains on it";
}

}  // namespace stepc::train
