// Where the planned bytes of a step lie. ArenaPlace: all of them, for one run.
//
// Arena: one stretch of address space that holds every planned byte of a step. It grows in place and never moves, so
// tensors may point into it for the life of the process. All plans that a thread runs share one arena: its size is the
// largest of them, not their sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace stepc {

class Arena {
 public:
  // Reserves address space (no memory yet). Throws UserError when the process may not.
  Arena();
  ~Arena() = delete;  // arenas are pooled for the life of the process
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes the first `bytes` usable. Throws UserError when the reserved address space is too small.
  void grow_to(uint64_t bytes);

  // Gives the pages back to the system; they come back, empty, when they are used.
  void release();

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t reserved_bytes_ = 0;
  uint64_t bytes_ = 0;
};

// Below `device_begin` a plan's offsets are in the host's memory, from there on in a device's.
struct ArenaPlace {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
  uint64_t device_begin = UINT64_MAX;
  [[nodiscard]] std::byte* at(uint64_t offset) const {
    return offset < device_begin ? host + offset : device + (offset - device_begin);
  }
  bool operator==(const ArenaPlace&) const = default;
};

// The same of a device's memory, for the length of a run: taken from the device's own allocator, as a tensor, by the
// runs of one stream in turn. It moves when it grows. Throws UserError when the device has not got as much.
class DeviceArenaLease {
 public:
  DeviceArenaLease(const c10::Device& device, uint64_t bytes);
  ~DeviceArenaLease();
  DeviceArenaLease(const DeviceArenaLease&) = delete;
  DeviceArenaLease& operator=(const DeviceArenaLease&) = delete;
  [[nodiscard]] std::byte* base() const { return static_cast<std::byte*>(memory_.mutable_data_ptr()); }

 private:
  c10::Stream stream_;
  at::Tensor memory_;
};

// Those of this thread that no run has taken give their pages back: something else needs memory between two steps.
void release_idle_arenas();

// An arena for the length of a run. A thread gets the same one again and again, and a second one only while the first
// is taken by a run that is paused. When a thread ends, its arenas go to the next thread that asks.
class ArenaLease {
 public:
  ArenaLease();
  ~ArenaLease();
  ArenaLease(const ArenaLease&) = delete;
  ArenaLease& operator=(const ArenaLease&) = delete;
  Arena& operator*() const { return *arena_; }

 private:
  Arena* arena_ = nullptr;
};

}  // namespace stepc
