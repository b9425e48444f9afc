#include "blocked/micro_kernels.h"

#include <gtest/gtest.h>

namespace stepc::blocked {
namespace {

TEST(MicroKernels, TheProbeIsRepeatableAndSaysWhatIsThere) {
  const MicroKernels first = probe_micro_kernels();
  EXPECT_EQ(first, probe_micro_kernels());
  EXPECT_EQ(to_text({}), "none");
  EXPECT_EQ(to_text({true, false, true}), "bf16, avx512");
  std::printf("[ machine  ] %s\n", to_text(first).c_str());
}

}  // namespace
}  // namespace stepc::blocked
