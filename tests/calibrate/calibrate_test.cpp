// A calibration of the machine that runs this: every rate is there, and prices a Schedule.
#include "calibrate/calibrate.h"

#include <algorithm>
#include <stdexcept>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "plan/simulate.h"

namespace stepc {
namespace {

TEST(Calibrate, MeasuresWhatASchedulesPriceAsksFor) {
  KernelSources kernels{std::filesystem::path()};
  std::vector<std::string> heard;
  const Target target = calibrate(
      kernels, [&](const std::string& what) { heard.push_back(what); }, 1);
  EXPECT_EQ(heard.size(), 7U);
  EXPECT_EQ(target.threads, at::get_num_threads());
  // Reading it checks every number's range, and that no kind of row is missing.
  EXPECT_EQ(parse_target(to_text(target)), target);
  EXPECT_GT(target.flops_per_second, 1e8);
  EXPECT_GT(target.rates.streams.front().bytes_per_second, target.rates.streams.back().bytes_per_second)
      << "a cache is faster than memory";
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const char* op : {"aten::add.Tensor", "aten::addcmul_", "aten::native_layer_norm", "reshape", "put_add"})
      EXPECT_EQ(std::ranges::count_if(target.rates.calls,
                                      [&](const CallRate& rate) { return rate.op == op && rate.dtype == dtype; }),
                1)
          << op << " in " << name_of(dtype);
  EXPECT_EQ(std::ranges::count(target.rates.calls, "aten::mm", &CallRate::op), 0) << "its time goes by its arithmetic";
  EXPECT_NE(rates_table(target).find("GFLOP/s in f32"), std::string::npos);
}

TEST(Calibrate, DrawsOfTheProgramGoOnWhereTheyWere) {
  at::manual_seed(7);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(7);
  KernelSources kernels{std::filesystem::path()};
  std::string heard;
  const auto stop = [&](const std::string& what) {
    heard = what;
    if (what.starts_with("memory"))
      throw std::runtime_error("enough");  // the calls have been measured, draws among them
  };
  EXPECT_THROW((void)calibrate(kernels, stop, 2), std::runtime_error);
  EXPECT_EQ(heard, "memory, 1 of 2");
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

}  // namespace
}  // namespace stepc
