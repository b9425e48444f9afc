// Runs the small kernels on the device beside the interpreter of mappings, and says of each what came of it.
#pragma once

#include <filesystem>

#include "codegen/machine_code.h"
#include "device/cuda_driver.h"

namespace stepc {

// What came of work on a device, as an exit code. After kDeviceFailed the process can do no more on it.
enum class DeviceOutcome : uint8_t { kSame = 0, kDiffers = 1, kDeviceFailed = 4 };

// From case `first` on, a JSON line each.
DeviceOutcome check_kernels(const CudaDriver& driver, MachineCode& code, const std::filesystem::path& root,
                            size_t first);

}  // namespace stepc
