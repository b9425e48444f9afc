#include "aten/cpu_hook.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include <malloc.h>
#include <sys/mman.h>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include "base/check.h"

namespace stepc {

namespace {

// What a thread and its intra-op workers share. A worker keeps pointing at the team of the thread that last led it; the
// team is never freed, so a worker that outlives its leader finds no client there and falls through.
struct Team {
  std::atomic<AllocationClient*> client{nullptr};
};

struct Member {
  Team* team = nullptr;
  int worker = 0;
};
thread_local Member t_member;         // whom this thread allocates for
thread_local Team* t_team = nullptr;  // the team that this thread leads; leaked on purpose, see Team

AllocationClient* current_client() {
  return t_member.team == nullptr ? nullptr : t_member.team->client.load(std::memory_order_acquire);
}

struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
};

// Large blocks, each mapped by itself. While a step is recorded the recorder's own small objects, which stay, would
// come to lie between its tensors and keep the heap from ever using the gaps again: twice eager's resident memory.
//
// Fresh pages cost as much as a good part of what is computed in them. So a recorded step's blocks are kept when it
// frees them, for its next ones of their size and for those of the steps that are recorded after it, up to release().
// All of them stay below the most that was in use by then: what others allocate meanwhile is taken from what is kept.
class Mappings {
 public:
  static constexpr size_t kLeastBytes = size_t{1} << 20;

  // A step is recorded. Blocks outlive that.
  void open() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0 && kept_.empty()) peak_bytes_ = live_bytes_;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    --open_;
  }
  // Lets go of what is kept.
  void release() {
    const std::lock_guard lock(mutex_);
    keep_at_most(0);
    count();
  }

  // nullptr: the system has no more.
  void* map(size_t bytes) {
    bytes = (bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard lock(mutex_);
    const auto same = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Block& one) { return one.bytes == bytes; });
    void* memory = nullptr;
    if (same != kept_.rend()) {
      memory = same->memory;
      kept_.erase(std::next(same).base());
      kept_bytes_ -= bytes;
    } else {
      keep_at_most(peak_bytes_ - std::min(peak_bytes_, live_bytes_ + bytes));
      memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) return nullptr;
    }
    bytes_at_.emplace(memory, bytes);
    live_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    count();
    return memory;
  }

  // Whether `memory` was one of them.
  bool unmap(void* memory) {
    if (reinterpret_cast<uintptr_t>(memory) % kPage != 0 || count_.load(std::memory_order_acquire) == 0) return false;
    const std::lock_guard lock(mutex_);
    const auto found = bytes_at_.extract(memory);
    if (found.empty()) return false;
    const Block block{memory, found.mapped()};
    live_bytes_ -= block.bytes;
    if (open_ != 0) {
      kept_.push_back(block);
      kept_bytes_ += block.bytes;
    } else {
      give_back(block);
    }
    count();
    return true;
  }

  // Somebody else allocates as much.
  void make_room(size_t bytes) {
    if (!has_kept_.load(std::memory_order_acquire) || bytes < kLeastBytes) return;
    const std::lock_guard lock(mutex_);
    keep_at_most(kept_bytes_ - std::min(kept_bytes_, bytes));
    count();
  }

 private:
  static constexpr uintptr_t kPage = 4096;  // or a multiple of it
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };

  // A process has a limited number of mappings, and this may split one: then only its pages go.
  static void give_back(const Block& block) {
    if (::munmap(block.memory, block.bytes) != 0) ::madvise(block.memory, block.bytes, MADV_DONTNEED);
  }
  // The longest unused go.
  void keep_at_most(size_t bytes) {
    auto first = kept_.begin();
    for (; kept_bytes_ > bytes; ++first) {
      kept_bytes_ -= first->bytes;
      give_back(*first);
    }
    kept_.erase(kept_.begin(), first);
  }
  void count() {
    count_.store(bytes_at_.size(), std::memory_order_release);
    has_kept_.store(!kept_.empty(), std::memory_order_release);
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> bytes_at_;
  int open_ = 0;
  size_t live_bytes_ = 0;
  size_t peak_bytes_ = 0;    // since nothing was kept
  std::vector<Block> kept_;  // the longest unused first
  size_t kept_bytes_ = 0;
  // Asked without the lock.
  std::atomic<size_t> count_{0};
  std::atomic<bool> has_kept_{false};
};

class Hook final : public c10::Allocator {
 public:
  explicit Hook(c10::Allocator* base) : base_(base), base_free_(base->raw_deleter()) {}

  c10::DataPtr allocate(size_t bytes) override {
    AllocationClient* client = bytes == 0 ? nullptr : current_client();
    void* memory = client == nullptr ? nullptr : client->allocate(bytes, t_member.worker);
    if (memory == nullptr) {
      const bool is_mapped = client != nullptr && client->maps_large_blocks() && bytes >= Mappings::kLeastBytes;
      if (is_mapped) memory = mappings_.map(bytes);
      if (memory == nullptr) {
        mappings_.make_room(bytes);
        memory = base_->raw_allocate(bytes);
      }
      if (client != nullptr && memory != nullptr) client->on_system_allocation(memory, bytes, t_member.worker);
    }
    return {memory, memory, &free_memory, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  void add_range(uintptr_t begin, uintptr_t end) {
    const std::lock_guard lock(ranges_mutex_);
    const size_t count = range_count_.load();
    INTERNAL_CHECK_LT(count, ranges_.size(), "too many arenas");
    ranges_[count].begin = begin;
    ranges_[count].end = end;
    range_count_.store(count + 1, std::memory_order_release);
  }

  Mappings& mappings() { return mappings_; }

  void add_watcher(AllocationClient* client) {
    const std::unique_lock lock(watchers_mutex_);
    watchers_.push_back(client);
    watcher_count_ = watchers_.size();
  }
  void remove_watcher(AllocationClient* client) {
    const std::unique_lock lock(watchers_mutex_);
    watchers_.erase(std::remove(watchers_.begin(), watchers_.end(), client), watchers_.end());
    watcher_count_ = watchers_.size();
  }

  // Before the memory goes back: its address must not be handed out again while the watcher thinks it lives.
  void tell_watchers(void* memory) {
    if (watcher_count_.load(std::memory_order_acquire) == 0) return;
    const std::shared_lock lock(watchers_mutex_);
    for (AllocationClient* client : watchers_) client->on_system_free(memory);
  }

  static Hook*& instance() {
    static Hook* hook = nullptr;  // leaked: tensors are freed after static destructors
    return hook;
  }

 private:
  static void free_memory(void* memory) {
    if (memory == nullptr) return;
    Hook& hook = *instance();
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const size_t count = hook.range_count_.load(std::memory_order_acquire);
    for (size_t i = 0; i < count; ++i) {
      if (address < hook.ranges_[i].begin.load(std::memory_order_relaxed) ||
          address >= hook.ranges_[i].end.load(std::memory_order_relaxed))
        continue;
      if (AllocationClient* client = current_client()) client->on_arena_free(memory, t_member.worker);
      return;
    }
    hook.tell_watchers(memory);
    if (!hook.mappings_.unmap(memory)) hook.base_free_(memory);
  }

  c10::Allocator* base_;
  c10::DeleterFnPtr base_free_;
  Mappings mappings_;
  std::mutex ranges_mutex_;
  std::array<Range, 64> ranges_;
  std::atomic<size_t> range_count_{0};
  std::shared_mutex watchers_mutex_;
  std::vector<AllocationClient*> watchers_;
  std::atomic<size_t> watcher_count_{0};
};

// Points every intra-op worker of the calling thread at its team. libgomp keeps a pool of workers for each leading
// thread, so the pool that this region reaches is the pool that the kernels will use; it is bound anew for every scope
// because the runtime may replace workers when the team's size changes in between.
void bind_workers(Team* team) {
  const int threads = at::get_num_threads();
  if (threads > 1 && !at::in_parallel_region()) {
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) { t_member = {team, static_cast<int>(begin)}; });
  }
  t_member = {team, 0};
}

}  // namespace

AllocationScope::AllocationScope(AllocationClient& client, bool watch_frees)
    : client_(client), watch_frees_(watch_frees) {
  INTERNAL_CHECK(Hook::instance() != nullptr, "install_cpu_hook() comes first");
  if (t_team == nullptr) t_team = new Team;
  INTERNAL_CHECK(t_team->client.load() == nullptr, "this thread already lends its allocations");
  bind_workers(t_team);
  if (watch_frees_) Hook::instance()->add_watcher(&client_);
  if (client_.maps_large_blocks()) Hook::instance()->mappings().open();
  t_team->client.store(&client_, std::memory_order_release);
}

AllocationScope::~AllocationScope() {
  t_team->client.store(nullptr, std::memory_order_release);
  if (client_.maps_large_blocks()) Hook::instance()->mappings().close();
  if (watch_frees_) Hook::instance()->remove_watcher(&client_);
}

AllocationClient* client_of_this_thread() { return t_member.worker == 0 ? current_client() : nullptr; }

void tell_watchers(void* memory) {
  if (Hook* const hook = Hook::instance()) hook->tell_watchers(memory);
}

void install_cpu_hook() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* base = c10::GetCPUAllocator();
    USER_CHECK(
        base != nullptr && base->raw_deleter() != nullptr,
        "the CPU allocator of this process cannot be wrapped (it has no raw deleter): create the accelerated step "
        "before another library replaces PyTorch's CPU allocator");
    Hook::instance() = new Hook(base);
    c10::SetCPUAllocator(Hook::instance(), 255);
    USER_CHECK(c10::GetCPUAllocator() == Hook::instance(),
               "another library has replaced PyTorch's CPU allocator with the highest priority; stepc must see every "
               "allocation and cannot work beside it");
  });
}

void register_arena_range(const void* begin, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  Hook::instance()->add_range(address, address + bytes);
}

void release_free_memory() {
  if (Hook* const hook = Hook::instance()) hook->mappings().release();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace stepc
