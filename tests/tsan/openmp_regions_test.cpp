// Whether ThreadSanitizer finds races in code that LibTorch's workers run, and only those: what it is told about OpenMP
// (openmp_regions.cpp) must not hide what two workers do to the same memory. Each race runs in a process of its own.
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "aten/cpu_hook.h"
#include "blocked/brgemm.h"
#include "runtime/micro_kernels.h"

namespace stepc {
namespace {

constexpr int kThreads = 2;
const auto kReported = ::testing::ExitedWithCode(66);  // what TSan makes of any exit after a report

// Lets `kThreads` threads, once all are there, do their work one after the other. Relaxed atomics put nothing of one
// thread before the other's, so work on the same memory is a race that no chance of timing hides.
class Turns {
 public:
  template <class Work>
  void take(const Work& work) {
    const int mine = here_.fetch_add(1, std::memory_order_relaxed);
    while (here_.load(std::memory_order_relaxed) < kThreads || done_.load(std::memory_order_relaxed) != mine)
      std::this_thread::yield();
    work();
    done_.store(mine + 1, std::memory_order_relaxed);
  }

 private:
  std::atomic<int> here_{0};
  std::atomic<int> done_{0};
};

// Every worker writes to the same word.
int sum_in_tasks_without_a_lock() {
  at::set_num_threads(kThreads);
  Turns turns;
  int sum = 0;
  blocked::for_tasks(probe_micro_kernels(), kThreads, kThreads,
                     [&](int, int64_t task) { turns.take([&] { sum += static_cast<int>(task); }); });
  return sum;
}

// Asked by LibTorch's allocator on the leader and its workers, counts without a lock.
class Careless final : public AllocationClient {
 public:
  void* allocate(size_t, int) override {
    turns_.take([&] { ++calls_; });
    return nullptr;
  }
  void on_system_allocation(void*, size_t, int) override {}
  void on_system_free(void*) override {}
  void on_arena_free(void*, int) override {}
  [[nodiscard]] int calls() const { return calls_; }

 private:
  Turns turns_;
  int calls_ = 0;
};

int count_allocations_without_a_lock() {
  at::set_num_threads(kThreads);
  install_cpu_hook();
  Careless client;
  const AllocationScope scope(client, false);
  at::parallel_for(0, kThreads, 1, [](int64_t, int64_t) { at::empty({1000}); });
  return client.calls();
}

class OpenmpRaces : public ::testing::Test {
 protected:
  // Started anew: a fork would lack the pool of threads.
  OpenmpRaces() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(OpenmpRaces, BetweenTasksAreReported) {
  EXPECT_EXIT(std::exit(sum_in_tasks_without_a_lock() < 0), kReported, "data race.*sum_in_tasks");
}

TEST_F(OpenmpRaces, InAnAllocationClientAreReported) {
  EXPECT_EXIT(std::exit(count_allocations_without_a_lock() < 0), kReported, "data race.*allocate.*count_allocations");
}

// No report: this process would end with the code above.
TEST(OpenmpRegions, ComeAfterWhatWasBeforeAndBeforeWhatFollows) {
  at::set_num_threads(kThreads);
  std::vector<int64_t> numbers(kThreads, 1);
  for (int round = 0; round < 3; ++round) {
    Turns turns;
    blocked::for_tasks(probe_micro_kernels(), kThreads, kThreads,
                       [&](int, int64_t task) { turns.take([&] { numbers[static_cast<size_t>(task)] += task; }); });
    numbers[0] += std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  }
  EXPECT_EQ(numbers, (std::vector<int64_t>{26, 4}));
}

}  // namespace
}  // namespace stepc
