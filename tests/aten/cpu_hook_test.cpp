#include "aten/cpu_hook.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

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
