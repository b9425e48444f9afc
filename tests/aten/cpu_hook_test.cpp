#include "aten/cpu_hook.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "ir/worker_slab.h"

namespace stepc {
namespace {

class Counter final : public AllocationClient {
 public:
  void* allocate(size_t, int) override { return nullptr; }
  void on_system_allocation(void*, size_t, int worker) override { ++(worker == 0 ? leader : workers); }
  void on_system_free(void*) override { ++frees; }
  void on_arena_free(void*, int) override {}
  std::atomic<int> leader{0};
  std::atomic<int> workers{0};
  std::atomic<int> frees{0};
};

TEST(CpuHook, LeaderAndWorkersAreToldApartFromOtherThreads) {
  install_cpu_hook();
  install_cpu_hook();  // idempotent
  at::set_num_threads(4);
  Counter counter;
  {
    const AllocationScope scope(counter, false);
    const at::Tensor mine = at::empty({1000});
    std::thread([] { at::empty({1000}); }).join();
    at::parallel_for(0, 4, 1, [](int64_t, int64_t) { at::empty({1000}); });
  }
  at::empty({1000});
  EXPECT_EQ(counter.leader, 2);  // its own and its share of the parallel loop
  EXPECT_EQ(counter.workers, 3);
  EXPECT_EQ(counter.frees, 0);
  at::set_num_threads(2);
}

TEST(CpuHook, WatchersHearOfFreesOnAnyThread) {
  install_cpu_hook();
  Counter counter;
  at::Tensor tensor = at::empty({1000});
  const AllocationScope scope(counter, true);
  std::thread([&] { tensor.reset(); }).join();
  EXPECT_EQ(counter.frees, 1);
}

TEST(CpuHook, EmptyTensorsAskForNothing) {
  install_cpu_hook();
  Counter counter;
  const AllocationScope scope(counter, false);
  at::empty({0});
  EXPECT_EQ(counter.leader, 0);
}

class Mapper final : public AllocationClient {
 public:
  void* allocate(size_t, int) override { return nullptr; }
  void on_system_allocation(void*, size_t, int) override {}
  void on_system_free(void*) override {}
  void on_arena_free(void*, int) override {}
  [[nodiscard]] bool maps_large_blocks() const override { return true; }
};

constexpr size_t kPage = 4096;
constexpr int64_t kMegabyte = int64_t{1} << 20;

// Whether the page that was written there still is.
bool is_there(const void* memory) {
  unsigned char resident = 0;
  return ::mincore(const_cast<void*>(memory), kPage, &resident) == 0 && (resident & 1) != 0;
}

TEST(CpuHook, LargeBlocksThatAreMappedGoBackToTheSystemWhenTheyAreFreed) {
  install_cpu_hook();
  constexpr int64_t kBytes = 3 * kMegabyte;
  Mapper mapper;
  at::Tensor large;
  at::Tensor small;
  {
    const AllocationScope scope(mapper, false);
    large = at::zeros({kBytes}, at::kByte);
    small = at::zeros({1000}, at::kByte);
  }
  const at::Tensor others = at::zeros({kBytes}, at::kByte);
  void* memory = large.data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % kPage, 0U);
  EXPECT_NE(reinterpret_cast<uintptr_t>(small.data_ptr()) % kPage, 0U);
  EXPECT_TRUE(is_there(memory));
  std::thread([&] { large.reset(); }).join();
  EXPECT_FALSE(is_there(memory));
  small.reset();
  EXPECT_EQ(others.sum().item<int64_t>(), 0);
}

TEST(CpuHook, AMappedBlockThatIsFreedIsTheNextOneOfItsSize) {
  install_cpu_hook();
  Mapper mapper;
  void* memory = nullptr;
  const auto record = [&](int64_t bytes) {
    const AllocationScope scope(mapper, false);
    at::Tensor made = at::zeros({bytes}, at::kByte);
    EXPECT_EQ(made.sum().item<int64_t>(), 0);
    made.fill_(1);
    memory = made.data_ptr();
    std::thread([&] { made.reset(); }).join();
  };
  record(3 * kMegabyte - 1000);
  void* const first = memory;
  EXPECT_TRUE(is_there(first)) << "for the next recorded step";
  record(3 * kMegabyte);  // as many pages
  EXPECT_EQ(memory, first);
  release_free_memory();
  EXPECT_FALSE(is_there(first));
}

TEST(CpuHook, MappedBlocksThatAreKeptStayWithinTheMostThatWasInUse) {
  install_cpu_hook();
  release_free_memory();
  Mapper mapper;
  const auto block = [](int64_t megabytes) { return at::ones({megabytes * kMegabyte}, at::kByte); };
  const void* was_first = nullptr;
  const void* was_second = nullptr;
  at::Tensor held;
  const auto record = [&] {
    const AllocationScope scope(mapper, false);
    held = block(2);
    at::Tensor first = block(3);
    at::Tensor second = block(4);  // the most: 9
    was_first = first.data_ptr();
    was_second = second.data_ptr();
    first.reset();
    second.reset();
    EXPECT_TRUE(is_there(was_first) && is_there(was_second));
  };
  record();
  {
    const AllocationScope scope(mapper, false);
    const at::Tensor small = block(1);  // 3 in use, 7 kept: the first to be freed goes
    EXPECT_FALSE(is_there(was_first));
    EXPECT_TRUE(is_there(was_second));
    const at::Tensor large = at::empty({7 * kMegabyte}, at::kByte);  // 10 in use, more than ever
    EXPECT_FALSE(is_there(was_second));
  }
  release_free_memory();
  record();
  {
    const at::Tensor others = at::empty({2 * kMegabyte}, at::kByte);  // of a step that is not recorded
    EXPECT_FALSE(is_there(was_first));
    EXPECT_TRUE(is_there(was_second));
  }
  release_free_memory();
}

TEST(CpuHook, ThreadsThatMapShareWhatIsKept) {
  install_cpu_hook();
  release_free_memory();
  std::vector<std::thread> threads;
  for (uint8_t t = 1; t <= 4; ++t)
    threads.emplace_back([t] {
      Mapper mine;
      for (int64_t i = 0; i < 30; ++i) {
        const AllocationScope scope(mine, false);
        const at::Tensor one = at::full({(1 + i % 3) * kMegabyte}, t, at::kByte);
        const at::Tensor two = at::full({(1 + (i + t) % 3) * kMegabyte}, t + 4, at::kByte);
        ASSERT_TRUE((one == t).all().item<bool>() && (two == t + 4).all().item<bool>());
        if (i % 10 == t) release_free_memory();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(WorkerSlab, FirstFitReusesGaps) {
  WorkerSlab slab;
  EXPECT_EQ(slab.allocate(100), 0U);
  EXPECT_EQ(slab.allocate(64), 128U);
  EXPECT_EQ(slab.allocate(1), 192U);
  slab.free(128);
  EXPECT_EQ(slab.allocate(65), 256U);
  EXPECT_EQ(slab.allocate(64), 128U);
  EXPECT_EQ(slab.high_water(), 384U);
  EXPECT_EQ(slab.allocate(64, 384), std::nullopt);
  slab.free(999);  // unknown
  slab.clear();
  EXPECT_EQ(slab.allocate(64, 64), 0U);
}

}  // namespace
}  // namespace stepc
