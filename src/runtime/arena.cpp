#include "runtime/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aten/cpu_hook.h"
#include "aten/device_facts.h"
#include "base/check.h"

namespace stepc {

namespace {
constexpr uint64_t kHugePage = uint64_t{2} << 20;

struct Pool {
  std::mutex mutex;
  std::vector<Arena*> free;
};
Pool& pool() {
  static auto* instance = new Pool;  // leaked: threads may end after static destructors
  return *instance;
}

// A thread's free arenas, the last used on top; they go to the process's pool when the thread ends.
struct FreeOfThread {
  std::vector<Arena*> arenas;
  ~FreeOfThread() {
    const std::lock_guard lock(pool().mutex);
    pool().free.insert(pool().free.end(), arenas.begin(), arenas.end());
  }
};
std::vector<Arena*>& free_of_this_thread() {
  thread_local FreeOfThread free;
  return free.arenas;
}
}  // namespace

Arena::Arena() {
  install_cpu_hook();
  // Address space costs nothing. If the system refuses a size, half of it is tried, down to a size that no plan would
  // fit in.
  for (uint64_t bytes = uint64_t{4} << 40; bytes >= uint64_t{1} << 30; bytes /= 2) {
    void* memory = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) continue;
    const auto address = reinterpret_cast<uintptr_t>(memory);
    base_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
    reserved_bytes_ = bytes;
    register_arena_range(base_, reserved_bytes_);
    return;
  }
  user_error("no address space for the arena: {} (is a limit set with ulimit -v?)", std::strerror(errno));
}

void Arena::grow_to(uint64_t bytes) {
  if (bytes <= bytes_) return;
  const uint64_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  USER_CHECK(rounded <= reserved_bytes_, "the plan needs {}, but only {} of address space could be reserved",
             human_bytes(bytes), human_bytes(reserved_bytes_));
  USER_CHECK(mprotect(base_, rounded, PROT_READ | PROT_WRITE) == 0, "the system refuses {} for the arena: {}",
             human_bytes(bytes), std::strerror(errno));
  madvise(base_, rounded, MADV_HUGEPAGE);  // a hint: fewer page faults and TLB misses where it is granted
  bytes_ = rounded;
}

void Arena::release() {
  if (bytes_ > 0) madvise(base_, bytes_, MADV_DONTNEED);
}

void release_idle_arenas() {
  for (Arena* arena : free_of_this_thread()) arena->release();
}

ArenaLease::ArenaLease() {
  std::vector<Arena*>& own = free_of_this_thread();
  if (!own.empty()) {
    arena_ = own.back();
    own.pop_back();
    return;
  }
  {
    const std::lock_guard lock(pool().mutex);
    if (!pool().free.empty()) {
      arena_ = pool().free.back();
      pool().free.pop_back();
    }
  }
  if (arena_ == nullptr) arena_ = new Arena;
}
ArenaLease::~ArenaLease() {
  if (taken_by_ == std::this_thread::get_id()) {
    free_of_this_thread().push_back(arena_);
    return;
  }
  // The backward pass of a loop on a device ends on autograd's thread, which takes no arena itself.
  const std::lock_guard lock(pool().mutex);
  pool().free.push_back(arena_);
}

namespace {
struct FreeOnDevice {
  std::mutex mutex;
  std::map<std::pair<std::string, c10::StreamId>, std::vector<at::Tensor>> free;  // by device and stream
  std::vector<at::Tensor>& of(const c10::Stream& stream) { return free[{stream.device().str(), stream.id()}]; }
};
FreeOnDevice& free_on_device() {
  static auto* instance = new FreeOnDevice;  // leaked: a device may be gone before static destructors run
  return *instance;
}
std::string trouble_with_free_bytes(const c10::Device& device, uint64_t bytes) {
  const auto facts = device_facts(device);
  if (!facts || facts->total_bytes == 0 || bytes <= facts->free_bytes) return {};
  return str("the plan needs {} on {}, of whose {} there are {} free", human_bytes(bytes), name_of(device, facts),
             human_bytes(facts->total_bytes), human_bytes(facts->free_bytes));
}
}  // namespace

std::string trouble_with_room(const c10::Device& device, uint64_t bytes) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) return {};  // a plan for a machine elsewhere
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  {
    const std::lock_guard lock(free_on_device().mutex);
    const std::vector<at::Tensor>& free = free_on_device().of(stream);
    if (!free.empty() && free.back().nbytes() >= bytes) return {};
  }
  return trouble_with_free_bytes(device, bytes);
}

DeviceArenaLease::DeviceArenaLease(const c10::Device& device, uint64_t bytes)
    : stream_(c10::impl::VirtualGuardImpl(device.type()).getStream(device)) {
  {
    const std::lock_guard lock(free_on_device().mutex);
    if (std::vector<at::Tensor>& free = free_on_device().of(stream_); !free.empty()) {
      memory_ = std::move(free.back());
      free.pop_back();
    }
  }
  if (memory_.defined() && memory_.nbytes() >= bytes) return;
  memory_.reset();
  const auto rounded = static_cast<int64_t>((std::max<uint64_t>(bytes, 1) + kHugePage - 1) / kHugePage * kHugePage);
  const std::string trouble = trouble_with_free_bytes(device, bytes);
  USER_CHECK(trouble.empty(), "{}", trouble);
  try {
    memory_ = at::empty({rounded}, at::TensorOptions().dtype(at::kByte).device(device));
  } catch (const c10::OutOfMemoryError& error) {
    user_error("the plan needs {} on {}, which has not got as much: {}", human_bytes(bytes), device.str(),
               first_line(error.what_without_backtrace()));
  }
}
DeviceArenaLease::~DeviceArenaLease() {
  const std::lock_guard lock(free_on_device().mutex);
  free_on_device().of(stream_).push_back(std::move(memory_));
}

}  // namespace stepc
