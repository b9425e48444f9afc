// The generated kernels of a Graph's Schedule on the device that it names, mapped to its threads and loaded.
#pragma once

#include <memory>
#include <vector>

#include "aten/device_facts.h"
#include "aten/device_hook.h"
#include "codegen/gpu_mapping.h"
#include "runtime/kernel_sources.h"
#include "schedule/schedule.h"

namespace stepc {

// Throws UserError if the device runs no generated kernels, or none can be made for it on this machine.
DeviceFacts usable_device_facts(const std::string& device, KernelSources& sources);
GpuShape shape_of(const DeviceFacts& facts);

// By program. Throws UserError if the Schedule is for another kind of device, RefusedPrograms.
std::vector<std::shared_ptr<DeviceProgram>> load_device_programs(const Schedule& schedule, KernelSources* sources);

}  // namespace stepc
