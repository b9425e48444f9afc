#include "train/machine/machine.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

namespace stepc::train {
namespace {

class ThreadsTest : public ::testing::Test {
 public:
  ~ThreadsTest() override {
    ::unsetenv("OMP_NUM_THREADS");
    at::set_num_threads(before_);
  }

  // Of a machine with eight cores.
  static int64_t threads_for(int64_t asked, int64_t local_ranks, const char* omp = nullptr) {
    ::unsetenv("OMP_NUM_THREADS");
    if (omp != nullptr) ::setenv("OMP_NUM_THREADS", omp, 1);
    at::set_num_threads(8);
    RunConfig config;
    config.train.threads = asked;
    const int64_t threads = use_threads(config, local_ranks).train.threads;
    EXPECT_EQ(at::get_num_threads(), threads);
    return threads;
  }

 private:
  int before_ = at::get_num_threads();
};

TEST_F(ThreadsTest, RanksShareTheCores) {
  EXPECT_EQ(threads_for(0, 1), 8);
  EXPECT_EQ(threads_for(0, 2), 4);
  EXPECT_EQ(threads_for(0, 3), 2);
  EXPECT_EQ(threads_for(0, 16), 1);
}

TEST_F(ThreadsTest, ANumberIsOfEachRank) {
  EXPECT_EQ(threads_for(5, 4), 5);
  EXPECT_EQ(threads_for(0, 4, "8"), 8);
}

}  // namespace
}  // namespace stepc::train
