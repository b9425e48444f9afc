#include "codegen/cuda_source.h"

#include <gtest/gtest.h>

#include "loops/expand_math.h"
#include "loops/lower/lower.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/nvrtc.h"

namespace stepc {
namespace {

TEST(CudaSource, CompilesForHopper) {
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "no NVRTC on this machine";
  for (const NamedGroup& group : step_groups()) {
    if (group.name.find("bf16 5") == std::string::npos && group.name.find(' ') != std::string::npos &&
        group.name.find("norm") == std::string::npos)
      continue;  // one of each size is enough: NVRTC takes a while
    SCOPED_TRACE(group.name);
    const std::string source = cuda_source(expand_math(lower(group.graph)));
    EXPECT_GT(nvrtc.cubin(source, cuda_options("sm_90")).size(), 100U);
  }
}

}  // namespace
}  // namespace stepc
