// The memory of a step's planned bytes. ArenaPlace: all of it, for one run.
//
// Arena: one range of address space that holds every planned byte of a step. It grows in place and never moves, so
// tensors may point into it for the life of the process. All plans that a thread runs share one arena: its size is the
// largest of theirs, not their sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include <ATen/core/Tensor.h>

namespace stepc {

class Arena {
 public:
  // Reserves address space (no memory yet). Throws UserError if the process may not reserve any.
  Arena();
  ~Arena() = delete;  // arenas are pooled for the life of the process
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes the first `bytes` usable. Throws UserError if the reserved address space is too small.
  void grow_to(uint64_t bytes);

  // Gives the pages back to the system. They come back, empty, when they are used.
  void release();

  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t reserved_bytes_ = 0;
  uint64_t bytes_ = 0;
};

// Offsets of a plan below `device_begin` lie in the host's memory, all others in a device's.
struct ArenaPlace {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
  uint64_t device_begin = UINT64_MAX;
  [[nodiscard]] std::byte* at(uint64_t offset) const {
    return offset < device_begin ? host + offset : device + (offset - device_begin);
  }
  bool operator==(const ArenaPlace&) const = default;
};

// An arena in a device's memory, for the length of a run. The device's own allocator provides it, as a tensor, and the
// runs of one stream use it in turn. It moves when it grows. Throws UserError if the device lacks the memory.
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

// What the device lacks for a lease of `bytes`, and what it has; empty: an idle arena or its free memory is enough, or
// it does not say.
std::string trouble_with_room(const c10::Device& device, uint64_t bytes);

// Idle arenas of this thread give their pages back: something else needs memory between two steps.
void release_idle_arenas();

// An arena for the length of a run. A thread gets the same one again and again, and a second one only while a paused
// run holds the first. An arena whose run ends on another thread, or whose thread ends, goes to the next thread that
// asks.
class ArenaLease {
 public:
  ArenaLease();
  ~ArenaLease();
  ArenaLease(const ArenaLease&) = delete;
  ArenaLease& operator=(const ArenaLease&) = delete;
  Arena& operator*() const { return *arena_; }

 private:
  Arena* arena_ = nullptr;
  std::thread::id taken_by_ = std::this_thread::get_id();
};

}  // namespace stepc
