#include "train/machine/device.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <dlfcn.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "base/check.h"
#include "base/text.h"

namespace stepc::train {

namespace {

std::optional<at::Device> parsed(const std::string& name) {
  try {
    return at::Device(name);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) {
  // stepc is not linked with CUDA's part of PyTorch, which therefore has to be loaded.
  if (type == c10::kCUDA && !c10::impl::hasDeviceGuardImpl(type))
    static_cast<void>(::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL));
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type) : nullptr;
}

std::string why_none(c10::DeviceType type) {
  const std::string of_driver = type == c10::kCUDA ? trouble_with(cuda_versions()) : std::string();
  return of_driver.empty() ? "no such device is here" : of_driver;
}

}  // namespace

at::Device use_device(const std::string& what, const std::string& name, int64_t local_rank) {
  if (name == kAutoDevice) return use_device(what, default_device(first_gpu()), local_rank);
  const std::optional<at::Device> device = parsed(name);
  USER_CHECK(device && !device->is_meta(), "{} = \"{}\" is no device; give \"cpu\", \"cuda\" or \"cuda:1\"", what,
             name);
  if (device->is_cpu()) return at::kCPU;
  const auto* const devices = guard_of(device->type());
  USER_CHECK(devices != nullptr,
             "{} = \"{}\": this PyTorch is built without it; install one that is made for it, or choose \"cpu\"", what,
             name);
  const int count = devices->deviceCount();
  USER_CHECK(count > 0, "{} = \"{}\": {}, or choose \"cpu\"", what, name, why_none(device->type()));
  // Ranks that share a machine have a GPU each.
  const auto index = device->has_index() ? device->index() : static_cast<c10::DeviceIndex>(local_rank);
  const std::string kind = c10::DeviceTypeName(device->type(), /*lower_case=*/true);
  USER_CHECK(index < count, "{} = \"{}\": there {} {} of them here, {}:0{}", what,
             at::Device(device->type(), index).str(), count == 1 ? "is" : "are", count, kind,
             count == 1 ? std::string() : str(" to {}:{}", kind, count - 1));
  const at::Device chosen(device->type(), index);
  devices->setDevice(chosen);
  if (const auto facts = device_facts(chosen)) {
    const std::string why = trouble_with(*facts);
    USER_CHECK(why.empty(), "{} = \"{}\": {}; choose \"cpu\"", what, name, why);
  }
  return chosen;
}

std::optional<DeviceFacts> first_gpu() {
  if (!std::filesystem::exists("/dev/nvidiactl")) return std::nullopt;
  const auto* const devices = guard_of(c10::kCUDA);
  if (devices == nullptr || devices->deviceCount() == 0) return DeviceFacts{.name = "NVIDIA GPU"};
  const auto facts = device_facts(at::Device(c10::kCUDA, 0));
  return facts ? *facts : DeviceFacts{.name = "NVIDIA GPU"};
}

std::string default_device(const std::optional<DeviceFacts>& gpu, std::span<const std::string_view> proven) {
  const bool is_proven = gpu && trouble_with(*gpu).empty() &&
                         std::ranges::any_of(proven, [&](auto card) { return gpu->name.starts_with(card); });
  return is_proven ? "cuda" : "cpu";
}

std::string unused_gpu(const at::Device& device, const std::optional<DeviceFacts>& gpu) {
  if (!device.is_cpu() || !gpu) return {};
  if (const std::string why = trouble_with(*gpu); !why.empty())
    return str("the GPU of this machine is not used: {}", why);
  return str("this machine has an {}: train.device = \"cuda\" trains on it{}", gpu->name,
             default_device(gpu) == "cuda" ? "" : ", and is no default before a run on such a card is in docs/gpu.md");
}

void check_device_memory(const std::string& what, const at::Device& device, uint64_t needed_bytes) {
  const auto facts = device_facts(device);
  if (!facts || facts->total_bytes == 0) return;
  USER_CHECK(needed_bytes <= facts->free_bytes, "{} needs at least {} on {}, of whose {} there are {} free", what,
             human_bytes(needed_bytes), name_of(device, facts), human_bytes(facts->total_bytes),
             human_bytes(facts->free_bytes));
}

}  // namespace stepc::train
