// Kernels on disk: found again, rebuilt when damaged, done without where the directory cannot be used.
#include "codegen/kernel_cache.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "interp/array.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/run_kernel.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

std::vector<Array> adamw_inputs(const Graph& group) {
  std::vector<Array> out;
  for (const GraphInput& input : group.inputs) {
    Array array(group.type(input.tensor));
    for (int64_t i = 0; i < array.count(); ++i) array.set(i, 0.25 + static_cast<double>(i % 7) / 8);
    out.push_back(std::move(array));
  }
  return out;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) out.push_back(entry.path());
  return out;
}

class CachedKernel : public ::testing::Test {
 protected:
  // Compiles and runs, and says how it came to be.
  CompilerStatistics compile(const std::filesystem::path& directory, const CpuTarget& target = host_cpu()) {
    KernelCompiler compiler(target, directory);
    const std::vector<Array> have = run_kernel(compiler, group_, inputs_);
    KernelCompiler plain(host_cpu());
    const std::vector<Array> want = run_kernel(plain, group_, inputs_);
    for (size_t i = 0; i < want.size() && target == host_cpu(); ++i) EXPECT_TRUE(same_bits(have[i], want[i]));
    return compiler.statistics();
  }

  TempDir directory_;
  Graph group_ = adamw_group(100);
  std::vector<Array> inputs_ = adamw_inputs(group_);
};

TEST_F(CachedKernel, IsReadBackByTheNextCompiler) {
  const CompilerStatistics first = compile(directory_.path());
  EXPECT_EQ(first.compiled, 1U);
  EXPECT_EQ(first.from_disk, 0U);
  EXPECT_EQ(first.cache_problem, "");
  ASSERT_EQ(files_in(directory_.path()).size(), 1U);
  const CompilerStatistics second = compile(directory_.path());
  EXPECT_EQ(second.compiled, 0U);
  EXPECT_EQ(second.from_disk, 1U);
  EXPECT_EQ(compile(directory_.path(), generic_cpu()).compiled, 1U) << "another CPU's code is another entry";
}

TEST_F(CachedKernel, DamageIsRebuilt) {
  compile(directory_.path());
  const std::filesystem::path file = files_in(directory_.path()).at(0);
  const std::string whole = read_text(file, 1 << 20);
  std::string flipped = whole;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 1);
  for (const std::string& damaged :
       {flipped, whole.substr(0, whole.size() - 1), whole + "x", std::string(), std::string("no kernel")}) {
    std::ofstream(file, std::ios::binary) << damaged;
    const CompilerStatistics statistics = compile(directory_.path());
    EXPECT_EQ(statistics.damaged, 1U);
    EXPECT_EQ(statistics.compiled, 1U);
    EXPECT_EQ(read_text(file, 1 << 20), whole) << "the entry is whole again";
  }
}

// Right by its checksum, and still no machine code.
TEST_F(CachedKernel, AnObjectThatCannotBeLoadedIsRebuilt) {
  compile(directory_.path());
  const std::filesystem::path file = files_in(directory_.path()).at(0);
  const std::string whole = read_text(file, 1 << 20);
  const size_t key_begins = whole.find('\n', whole.find('\n') + 1) + 1;
  const std::string key = whole.substr(key_begins, whole.find("\x7f"
                                                              "ELF") -
                                                       key_begins);
  ASSERT_EQ(KernelCache(directory_.path()).keep(key, "not an object"), "");
  const CompilerStatistics statistics = compile(directory_.path());
  EXPECT_EQ(statistics.damaged, 1U);
  EXPECT_EQ(statistics.compiled, 1U);
  EXPECT_EQ(compile(directory_.path()).from_disk, 1U);
}

TEST_F(CachedKernel, WorksWhereNothingCanBeWritten) {
  const std::filesystem::path in_the_way = directory_.path() / "file";
  std::ofstream(in_the_way) << "x";
  const CompilerStatistics statistics = compile(in_the_way / "cache");
  EXPECT_EQ(statistics.compiled, 1U);
  EXPECT_NE(statistics.cache_problem.find("cannot make"), std::string::npos) << statistics.cache_problem;
  EXPECT_EQ(compile({}).cache_problem, "");
}

TEST_F(CachedKernel, ProcessesAndThreadsShareADirectory) {
  std::vector<pid_t> children;
  for (int k = 0; k < 2; ++k) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int failures = 0;
      std::vector<std::thread> threads;
      KernelCompiler compiler(host_cpu(), directory_.path());
      for (int t = 0; t < 2; ++t)
        threads.emplace_back([&] {
          for (int64_t count = 1; count < 8; ++count) {
            const Graph group = adamw_group(count);
            if (run_kernel(compiler, group, adamw_inputs(group)).size() != 3) ++failures;
          }
        });
      for (std::thread& thread : threads) thread.join();
      _exit(failures == 0 && compiler.statistics().damaged == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  for (const std::filesystem::path& file : files_in(directory_.path()))
    EXPECT_EQ(file.extension(), ".kernel") << "nothing half written is left";
}

TEST(KernelCache, HoldsWholeKeys) {
  const TempDir directory;
  const KernelCache cache(directory.path());
  EXPECT_FALSE(cache.find("key").object);
  EXPECT_EQ(cache.keep("key", "code"), "");
  EXPECT_EQ(cache.find("key").object, "code");
  // Another key's entry under this one's name, as equal hashes would have it.
  std::filesystem::copy_file(cache.path_of("key"), cache.path_of("other"));
  EXPECT_FALSE(cache.find("other").object);
  EXPECT_TRUE(cache.find("other").damaged);
}

}  // namespace
}  // namespace stepc
