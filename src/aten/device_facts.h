// What the devices of this machine and their driver say of themselves, as plain data, and in one line what stands in
// their way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace stepc {

struct DeviceFacts {
  std::string name = {};       // "NVIDIA H100 80GB HBM3"
  std::string id = {};         // of this one and no other; empty: unknown
  int compute_capability = 0;  // 90; 0: of another kind than CUDA's
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // for this process, with what PyTorch keeps there unused
  // What generated kernels are made for.
  int64_t multiprocessors = 0;     // 0: they cannot run there
  int64_t shared_bytes = 0;        // that one block may have
  bool takes_machine_code = true;  // false: it runs the mapping itself
};
// nullopt: it says nothing of itself.
std::optional<DeviceFacts> device_facts(const c10::Device& device);

// Versions as CUDA gives them: 13000 for 13.0.
struct CudaVersions {
  bool is_there = false;
  int version = 0;  // the newest CUDA that it runs
  int wanted = 0;   // that PyTorch was built for
};
CudaVersions cuda_versions();

// Why no step runs there, in one line; empty: nothing is in the way.
std::string trouble_with(const CudaVersions& driver);
std::string trouble_with(const DeviceFacts& device);

// "cuda:0 (NVIDIA H100 80GB HBM3)", with what is known of it.
std::string name_of(const c10::Device& device, const std::optional<DeviceFacts>& facts);

// What libstepc_cuda.so and backends of somebody's own have for it: false where the device says nothing.
using FillDeviceFacts = bool(c10::DeviceIndex, DeviceFacts*);

}  // namespace stepc
