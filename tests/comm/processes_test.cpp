// Ranks that are processes of their own, started as a launcher would: by what stands in their environment. Each is this
// program again, running the one test that is left out of the others.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "base/text.h"
#include "comm/ranks.h"
#include "tests/comm/free_port.h"

namespace stepc {
namespace {

using std::chrono::milliseconds;

// One that ends with this object, at the latest.
class Process {
 public:
  explicit Process(const std::vector<std::string>& environment) {
    std::string path = testing::TempDir() + "rank_XXXXXX";
    const int output = mkstemp(path.data());
    output_ = path;
    std::vector<char*> variables;
    for (const std::string& one : environment) variables.push_back(const_cast<char*>(one.c_str()));
    for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
    variables.push_back(nullptr);
    const char* arguments[] = {"test_comm", "--gtest_filter=Processes.DISABLED_Rank", "--gtest_also_run_disabled_tests",
                               nullptr};
    const pid_t parent = getpid();
    id_ = fork();
    if (id_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(output, STDOUT_FILENO);
      dup2(output, STDERR_FILENO);
      execve("/proc/self/exe", const_cast<char**>(arguments), variables.data());
      _exit(127);
    }
    close(output);
  }
  ~Process() {
    if (!ended_) {
      kill();
      wait();
    }
    unlink(output_.c_str());
  }
  Process(const Process&) = delete;

  void kill() const { ::kill(id_, SIGKILL); }
  void stop() const { ::kill(id_, SIGSTOP); }
  int wait() {
    int status = 0;
    waitpid(id_, &status, 0);
    ended_ = true;
    return status;
  }
  [[nodiscard]] std::string output() const {
    std::ostringstream text;
    text << std::ifstream(output_).rdbuf();
    return text.str();
  }
  // Until it has written that, or for 20 s.
  [[nodiscard]] bool says(const std::string& text) const {
    for (int i = 0; i < 2000; ++i, std::this_thread::sleep_for(milliseconds(10)))
      if (output().find(text) != std::string::npos) return true;
    return false;
  }

 private:
  pid_t id_ = -1;
  bool ended_ = false;
  std::string output_;
};

std::vector<std::unique_ptr<Process>> start(int64_t ranks, const std::string& work, int timeout_ms) {
  const int port = free_port();
  std::vector<std::unique_ptr<Process>> all;
  for (int64_t rank = 0; rank < ranks; ++rank)
    all.push_back(std::make_unique<Process>(std::vector<std::string>{
        str("RANK={}", rank), str("WORLD_SIZE={}", ranks), str("LOCAL_RANK={}", rank),
        str("LOCAL_WORLD_SIZE={}", ranks), "MASTER_ADDR=localhost", str("MASTER_PORT={}", port), "RANK_WORK=" + work,
        str("RANK_TIMEOUT_MS={}", timeout_ms), "OMP_NUM_THREADS=1"}));
  return all;
}

// What runs in the other processes. Exit status 0 only where it did what it should.
TEST(Processes, DISABLED_Rank) {
  const char* work = std::getenv("RANK_WORK");
  if (work == nullptr) GTEST_SKIP() << "for the processes of the other tests";
  const Launch launch = launch_of([](const char* name) -> const char* { return std::getenv(name); });
  try {
    const milliseconds timeout(std::atoi(std::getenv("RANK_TIMEOUT_MS")));
    const auto ranks = Ranks::join(launch, timeout, timeout);
    const at::Tensor sum = at::full({1000}, static_cast<double>(ranks->rank() + 1));
    const at::Tensor scratch = at::empty({8000}, at::kByte);
    do {
      sum.fill_(static_cast<double>(ranks->rank() + 1));
      ranks->all().all_reduce(sum, ReduceOp::kSum, scratch.mutable_data_ptr(), 8000);
      std::printf("sum %g\n", sum[999].item<double>());
      std::fflush(stdout);
    } while (std::string_view(work) == "for ever");
    ranks->barrier();
  } catch (const UserError& error) {
    std::printf("stepc: %s\n", error.what());
    ADD_FAILURE();
  }
}

TEST(Processes, ComputeTogether) {
  const auto all = start(2, "once", 20000);
  for (const auto& one : all) {
    EXPECT_EQ(one->wait(), 0) << one->output();
    EXPECT_NE(one->output().find("sum 3\n"), std::string::npos) << one->output();
  }
}

// Ends the others, which say whom they waited for. Returns after how long.
double seconds_to_end(std::vector<std::unique_ptr<Process>>& all) {
  const auto begin = std::chrono::steady_clock::now();
  for (const size_t k : {size_t{0}, size_t{2}}) {
    EXPECT_NE(all[k]->wait(), 0) << all[k]->output();
    const std::string text = all[k]->output();
    EXPECT_NE(text.find("stepc: all-reduce of ranks 0, 1, 2: rank "), std::string::npos) << text;
    EXPECT_NE(text.find(str("rank {} waited for rank", k)), std::string::npos) << text;  // or for both
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Processes, EndWhenOneIsKilled) {
  auto all = start(3, "for ever", 30000);
  ASSERT_TRUE(all[1]->says("sum 6\n")) << all[1]->output();
  all[1]->kill();
  EXPECT_LT(seconds_to_end(all), 15.0) << "long before the timeout";
}

TEST(Processes, EndWhenOneDoesNotAnswer) {
  auto all = start(3, "for ever", 2000);
  ASSERT_TRUE(all[1]->says("sum 6\n")) << all[1]->output();
  all[1]->stop();
  EXPECT_LT(seconds_to_end(all), 15.0);
}

}  // namespace
}  // namespace stepc
