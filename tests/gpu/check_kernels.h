// Runs the small kernels on the device beside the interpreter of mappings, and says of each what came of it.
#pragma once

#include <filesystem>

#include "tests/gpu/cuda_driver.h"
#include "tests/gpu/machine_code.h"

namespace stepc {

// From case `first` on, a JSON line each.
DeviceOutcome check_kernels(const CudaDriver& driver, MachineCode& code, const std::filesystem::path& root,
                            size_t first);

}  // namespace stepc
