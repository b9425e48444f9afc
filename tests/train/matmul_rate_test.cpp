#include "train/machine/matmul_rate.h"

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

TEST(MatmulRate, TheRunsOwnMatmulsCount) {
  RunConfig config;
  config.train.threads = 1;
  config.model.compute = "float32";
  config.train.mode = "eager";
  for (const char* mode : {"eager", "fast"}) {
    config.train.mode = mode;
    EXPECT_GT(measure_run_rate(config).measured, 1e8) << mode;  // of any machine, however busy
  }
}

TEST(MatmulRate, SlowFloat16IsSaid) {
  EXPECT_EQ(slow_float16(1e12, 1.5e12), std::nullopt);
  EXPECT_EQ(slow_float16(4e9, 1e11),
            "model.compute = \"float16\": this machine multiplies float16 matrices 25 times slower than bfloat16; "
            "\"bfloat16\" is the faster choice");
  RunConfig config;
  EXPECT_EQ(slow_float16_here(config), std::nullopt);
}

}  // namespace
}  // namespace stepc::train
