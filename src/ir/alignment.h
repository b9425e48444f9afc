// The alignment of every planned byte: recorder, scheduler and executor round sizes by this one rule, so that what the
// recorder measured is what the executor needs.
#pragma once

#include <cstdint>

namespace stepc {

inline constexpr uint64_t kAlignment = 64;  // a cache line, and what ATen's kernels expect of an allocation

constexpr uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace stepc
