// The alignment of every planned byte of the host's memory, and of a device's: recorder, scheduler and executor round
// sizes by this one rule, so that what the recorder measured is what the executor needs.
#pragma once

#include <cstdint>

namespace stepc {

inline constexpr uint64_t kAlignment = 64;  // a cache line, and what ATen's kernels expect of an allocation

// What the CUDA allocator of PyTorch rounds to: cuBLASLt chooses its kernels by the alignment of pointers.
inline constexpr uint64_t kDeviceAlignment = 512;

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr uint64_t aligned_on_device(uint64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

}  // namespace stepc
