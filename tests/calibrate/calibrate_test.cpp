// A calibration of the machine that runs this: every rate is there, and prices a Schedule.
#include "calibrate/calibrate.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "plan/simulate.h"

namespace stepc {
namespace {

TEST(Calibrate, MeasuresWhatASchedulesPriceAsksFor) {
  KernelSources kernels{std::filesystem::path()};
  std::vector<std::string> heard;
  const Target target = calibrate(
      kernels, [&](const std::string& what) { heard.push_back(what); }, 2);
  EXPECT_EQ(heard.size(), 7U);
  EXPECT_EQ(target.threads, at::get_num_threads());
  // Reading it checks every number's range, and that no kind of row is missing.
  EXPECT_EQ(parse_target(to_text(target)), target);
  EXPECT_GT(target.flops_per_second, 1e8);
  EXPECT_GT(target.rates.streams.front().bytes_per_second, target.rates.streams.back().bytes_per_second)
      << "a cache is faster than memory";
  EXPECT_NE(rates_table(target).find("GFLOP/s in f32"), std::string::npos);
}

}  // namespace
}  // namespace stepc
