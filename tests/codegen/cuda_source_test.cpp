// What NVRTC makes of printed kernels: registers, and none of them spilled.
#include "codegen/cuda_source.h"

#include <cstdlib>
#include <fstream>
#include <regex>
#include <span>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "codegen/nvrtc.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/model_groups.h"
#include "tests/codegen/run_gpu.h"

namespace stepc {
namespace {

constexpr int kMostRegisters = 128;  // two blocks of 256 threads on a multiprocessor

// A kernel's resources, as ptxas reports them in NVRTC's log.
struct Resources {
  std::string kernel;
  int stack = 0, spilled = 0, registers = 0;
};

std::vector<Resources> resources_in(const std::string& log) {
  static const std::regex kEntry(
      R"(Compiling entry function '(\w+)'[\s\S]*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads[\s\S]*?Used (\d+) registers)");
  std::vector<Resources> out;
  for (std::sregex_iterator one(log.begin(), log.end(), kEntry), end; one != end; ++one) {
    const auto number = [&](size_t k) { return std::stoi((*one)[k].str()); };
    out.push_back({(*one)[1], number(2), number(3) + number(4), number(5)});
  }
  return out;
}

// NVRTC's log, kept beside the test's program from one run to the next.
std::string log_of(const Nvrtc& nvrtc, const std::string& source, int architecture) {
  std::vector<std::string> options = cuda_options(architecture);
  options.emplace_back("--ptxas-options=-v");
  const std::string key = nvrtc.version() + str("{}", fmt::join(options, " ")) + source;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "nvrtc_logs";
  const std::filesystem::path file = folder / hash_text(hash_bytes(std::as_bytes(std::span(key))));
  if (std::filesystem::exists(file)) return read_text(file, uint64_t{1} << 24);
  const std::string log = nvrtc.compile(source, options).log;
  std::filesystem::create_directories(folder);
  std::ofstream(file) << log;
  return log;
}

void expect_resources(const Nvrtc& nvrtc, const std::vector<NamedGroup>& groups, int architecture) {
  constexpr size_t kAtOnce = 16;  // programs in one source
  size_t kernels = 0;
  int most = 0;
  for (size_t first = 0; first < groups.size(); first += kAtOnce) {
    std::string source(cuda_prelude());
    size_t expected = 0;
    const size_t last = std::min(groups.size(), first + kAtOnce);
    for (size_t g = first; g < last; ++g) {
      const GpuProgram program = gpu_program(groups[g].graph);
      source += cuda_kernels(program, str("group{}_phase", g));
      expected += program.launches.size();
    }
    const std::vector<Resources> found = resources_in(log_of(nvrtc, source, architecture));
    EXPECT_EQ(found.size(), expected);
    for (const Resources& one : found) {
      const auto g = static_cast<size_t>(std::stoul(one.kernel.substr(5)));
      EXPECT_TRUE(one.stack == 0 && one.spilled == 0 && one.registers <= kMostRegisters)
          << groups[g].name << ", " << one.kernel << " for sm_" << architecture << ": " << one.registers
          << " registers, " << one.stack << " bytes of stack, " << one.spilled << " spilled\n"
          << to_text(gpu_program(groups[g].graph));
      most = std::max(most, one.registers);
    }
    kernels += expected;
  }
  std::printf("sm_%d: %zu kernels of %zu groups, at most %d registers\n", architecture, kernels, groups.size(), most);
}

TEST(CudaSource, KernelsStayInRegisters) {
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "[SKIP] no NVRTC on this machine";
  std::vector<NamedGroup> groups = model_groups(model_graphs(STEPC_SOURCE_DIR));
  for (NamedGroup& group : step_groups())
    if (group.name.find("f8e") != std::string::npos) groups.push_back(std::move(group));
  std::vector<int> architectures = {90};
  if (std::getenv("STEPC_KERNEL_GRAPHS") != nullptr) architectures = {80, 90, 100};
  for (int architecture : architectures) expect_resources(nvrtc, groups, architecture);
}

}  // namespace
}  // namespace stepc
