#include "aten/cpu_hook.h"

#include <atomic>
#include <thread>

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

TEST(CpuHook, LargeBlocksThatAreMappedGoBackToTheSystemWhenTheyAreFreed) {
  install_cpu_hook();
  constexpr int64_t kBytes = int64_t{3} << 20;
  constexpr size_t kPage = 4096;
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
  EXPECT_EQ(::msync(memory, kPage, MS_ASYNC), 0);
  std::thread([&] { large.reset(); }).join();
  EXPECT_EQ(::msync(memory, kPage, MS_ASYNC), -1);  // nothing lies there
  small.reset();
  EXPECT_EQ(others.sum().item<int64_t>(), 0);
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
