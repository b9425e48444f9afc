// The one place that stands between ATen and its CPU allocator. A thread may lend its allocations, and those of its
// intra-op workers, to an AllocationClient: the recorder watches them, the executor serves them from an arena. Every
// other thread falls through to the allocator that was there before. Installed once a process, never removed.
//
// Depends on LibTorch internals: c10::SetCPUAllocator's priority, and kernels that check DataPtr::get() ==
// DataPtr::get_context(), so the context is the pointer and the raw deleter finds out by address whose memory it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepc {

// What a thread does with its allocations while an AllocationScope is open. Calls come from the scope's thread
// (worker 0) and from its intra-op workers (1 ...), the latter at the same time: implementations synchronise.
class AllocationClient {
 public:
  virtual ~AllocationClient() = default;
  // Memory for `bytes` bytes aligned to 64, or nullptr: the system's allocator is asked, then on_system_allocation.
  virtual void* allocate(size_t bytes, int worker) = 0;
  virtual void on_system_allocation(void* memory, size_t bytes, int worker) = 0;
  // Whether large blocks of the system's are to be mapped each by itself, apart from the heap. Always the same answer.
  [[nodiscard]] virtual bool maps_large_blocks() const { return false; }
  // The same of a device's memory (device_hook.h), which is asked for on the scope's thread alone.
  virtual void* allocate_on_device(size_t /*bytes*/) { return nullptr; }
  virtual void on_device_allocation(void* /*memory*/, size_t /*bytes*/) {}
  // Whether on_system_free is to hear of a device's memory that was allocated while this client was asked.
  [[nodiscard]] virtual bool watches_device() const { return false; }
  // A free of system memory by any thread, while this client is watching (see AllocationScope).
  virtual void on_system_free(void* memory) = 0;
  // A free of memory inside a registered arena, by a thread that lends its allocations to this client.
  virtual void on_arena_free(void* memory, int worker) = 0;
};

// Lends the calling thread's allocations to `client` until the scope ends. At most one a thread; scopes on different
// threads are independent. With `watch_frees` the client hears of every free in the process (recording only: it locks).
class AllocationScope {
 public:
  AllocationScope(AllocationClient& client, bool watch_frees);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

 private:
  AllocationClient& client_;
  bool watch_frees_;
};

// Whom the calling thread, unless it is an intra-op worker, lends its allocations to now; nullptr: nobody.
AllocationClient* client_of_this_thread();
// Tells all who watch frees.
void tell_watchers(void* memory);

// Puts the hook in front of the CPU allocator and proves with one allocation that it is asked. Idempotent, thread-safe.
// Throws UserError when another library has replaced the allocator in a way that hides ours or cannot be wrapped.
void install_cpu_hook();

// Address range whose memory the hook must never hand to the system's allocator. Ranges are reserved address space and
// stay registered for the life of the process; at most 64.
void register_arena_range(const void* begin, size_t bytes);

// Gives memory that has been freed back to the operating system, where the C library can: after a recording and a
// verification the process has held a step's memory twice, and replay will not ask for it again.
void release_free_memory();

}  // namespace stepc
