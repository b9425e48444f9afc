// Times generated kernels at the sizes of a training step on the device, beside a copy of memory, and compares all that
// they write with what the interpreter of mappings says of a few rows.
#pragma once

#include "codegen/machine_code.h"
#include "device/cuda_driver.h"
#include "tests/gpu/check_kernels.h"

namespace stepc {

// The device in one JSON line, with its rate of copying.
void describe_device(const CudaDriver& driver);
// Those whose name begins with `beginning`, a JSON line each. `rows`: see rate_cases().
DeviceOutcome time_kernels(const CudaDriver& driver, MachineCode& code, int64_t rows, const std::string& beginning);

}  // namespace stepc
