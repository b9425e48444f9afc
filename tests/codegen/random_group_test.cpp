// Random programs, cut into groups by fuse(): every group's kernel against the interpreter, for this CPU and for the
// plainest one.
#include <gtest/gtest.h>

#include "tests/codegen/expect_kernel.h"
#include "tests/codegen/random_program.h"

namespace stepc {
namespace {

constexpr uint64_t kPrograms = 300;

TEST(RandomGroup, KernelsAreLikeTheInterpreter) {
  KernelCompiler host(host_cpu());
  KernelCompiler generic(generic_cpu());
  size_t kernels = 0;
  for (uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    for_each_random_group(seed, [&](const Graph& group, const std::vector<Array>& inputs) {
      if (::testing::Test::HasFatalFailure()) return;
      expect_kernel(seed % 4 == 0 ? generic : host, group, inputs);
      ++kernels;
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("%zu kernels, %.2f ms each to compile\n", kernels,
              1e3 * host.statistics().compile_seconds / static_cast<double>(host.statistics().compiled));
}

}  // namespace
}  // namespace stepc
