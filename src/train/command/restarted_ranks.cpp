#include "train/command/restarted_ranks.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/ranges.h>
#include <unistd.h>

#include "base/check.h"
#include "comm/secret.h"
#include "train/machine/child_process.h"
#include "train/machine/machine.h"
#include "train/machine/pythons.h"

namespace stepc::train {

namespace {

// Checks without importing torch, which takes seconds.
bool has_torch(const std::string& python) {
  const BlockedSignals signals;
  ChildProcess asked({python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"},
                     {}, signals);
  constexpr std::chrono::milliseconds kPause{5};
  std::optional<ProcessEnd> end;
  for (; !end; end = asked.note_end()) std::this_thread::sleep_for(kPause);
  return end->is_exit && end->value == 0;
}

std::string python_with_torch() {
  const std::vector<std::string> all = pythons();
  for (const std::string& python : all)
    if (has_torch(python)) return python;
  user_error(
      "--restarts starts ranks by torchrun, and no Python here has torch ({}): activate an environment with it, "
      "or name its Python in STEPC_PYTHON",
      fmt::join(all, ", "));
}

}  // namespace

int run_restarted_ranks(const LocalRanks& launch, int restarts, const RunConfig& config) {
  std::vector<std::string> command = {python_with_torch(),
                                      "-m",
                                      "torch.distributed.run",
                                      "--standalone",
                                      str("--nproc-per-node={}", launch.ranks),
                                      str("--max-restarts={}", restarts),
                                      "--monitor-interval=0.2",
                                      "--no-python"};
  command.insert(command.end(), launch.command.begin(), launch.command.end());
  // torchrun gives each rank one thread, with a long message, unless OMP_NUM_THREADS is set.
  const std::string threads = str("{}", use_threads(config, launch.ranks).train.threads);
  command.push_back("--train.threads=" + threads);
  setenv("OMP_NUM_THREADS", threads.c_str(), /*overwrite=*/0);
  if (!has_secret()) setenv("STEPC_SECRET", draw_nonce().c_str(), /*overwrite=*/0);
  setenv("STEPC_AGENT", str("{}", getpid()).c_str(), /*overwrite=*/1);  // as which it goes on below
  std::printf("%d ranks on this machine, started again at most %d times; output of all but rank 0 is in %s\n",
              launch.ranks, restarts, launch.logs.c_str());
  std::fflush(stdout);
  std::vector<char*> arguments;
  for (std::string& part : command) arguments.push_back(part.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  user_error("{} cannot be started: {}", command[0], std::strerror(errno));
}

}  // namespace stepc::train
