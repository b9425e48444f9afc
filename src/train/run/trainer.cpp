#include "train/run/trainer.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/ranks.h"
#include "comm/watch/agent.h"
#include "comm/watch/watchdog.h"
#include "engine/config.h"
#include "train/config/parallel.h"
#include "train/config/run_config_keys.h"
#include "train/machine/device.h"
#include "train/machine/machine.h"
#include "train/machine/signals.h"
#include "train/run/run.h"
#include "train/run/run_start.h"
#include "train/run/same_on_all.h"

namespace stepc::train {

namespace {

constexpr std::chrono::seconds kToMeet{60};
// How long a rank that was not asked to stop waits for its own agent's signal: the agent counts a rank that ends by
// itself as a failure.
constexpr std::chrono::seconds kToBeStopped{10};

// The hash of the running program's file: different programs may compute equal plans differently.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return hash_text(hash_bytes(std::as_bytes(std::span(bytes))));
}

// A plan fixes one number of threads: the smallest that a machine gives its ranks.
void use_common_threads(RunConfig& config, Ranks& ranks) {
  int64_t least = config.train.threads;
  for (const std::string& given : ranks.exchange(str("{}", least))) least = std::min(least, int64_t{std::stoll(given)});
  if (least < config.train.threads)
    log().warn("this machine has {} threads for each of its ranks, another one {}: all compute with so many",
               config.train.threads, least);
  config.train.threads = least;
  config = use_threads(std::move(config));
}

// A process that connects before all ranks have met takes an open file.
void take_all_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

// The agent that reads the ranks' output may be gone. During the run StopSignals asks the run to save and stop then;
// otherwise only the output is lost.
void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

// Agents stop their ranks one after the other when ranks come or go, and all ranks stop with the first one.
void wait_for_own_agent(const Launch& launch, int status) {
  if (!launch.has_agents() || status <= StopSignals::exit_code(0) || StopSignals::received() != 0) return;
  std::fflush(nullptr);
  std::this_thread::sleep_for(kToBeStopped);  // SIGTERM ends it
}

// Does the work. A rank that ends in it writes down what it did last, and where it was. `has_begun`: before that, an
// error in the input is reported only to the person who started this rank.
template <class Work>
auto leaving_its_flight(Ranks* ranks, bool has_begun, const Work& work) {
  if (ranks == nullptr) return work();
  Watchdog& watchdog = *ranks->watchdog();
  try {
    return watchdog.noting_lost_ranks(work);
  } catch (const LostRank&) {
    throw;
  } catch (const RankFailed& error) {
    if (has_begun) watchdog.leave(FlightFile::End::kTold, error.what());
    throw;
  } catch (const UserError& error) {
    if (has_begun) watchdog.leave(FlightFile::End::kFailed, error.what());
    throw;
  } catch (const std::exception& error) {
    watchdog.leave(FlightFile::End::kFailed, first_line(error.what()));
    throw;
  }
}

// Runs from the ranks' meeting to the end of the run or of one rank. `rejoins`: this rank has lost others before.
// `left`: what this rank has kept of the run before, and keeps of this one for the next time.
int train_together(RunConfig config, const Launch& launch, bool resume, bool rejoins, FileSystem& files,
                   const std::filesystem::path& profile, std::optional<LeftBehind>& left) {
  const bool may_rejoin = config.elastic.rejoin_seconds > 0;
  // A rank that has not answered for this time is given up: soon all others have ended.
  const std::chrono::milliseconds to_answer = milliseconds_of(config.elastic.stall_seconds);
  const std::chrono::milliseconds to_meet =
      rejoins ? milliseconds_of(config.elastic.rejoin_seconds) : std::chrono::milliseconds(kToMeet);
  const std::shared_ptr<Ranks> ranks = launch.ranks > 1 ? Ranks::join(launch, to_meet, to_answer) : nullptr;
  std::optional<Run> run;
  or_fail_together(ranks.get(), [&] {
    // The checkpoints of the attempt before belong to this run.
    Continuation from{.resumes = resume || rejoins || launch.restart > 0, .launch = launch.run};
    if (ranks != nullptr) {
      check_same(*ranks, "the program", program_hash());
      check_same_config(*ranks, config);
      check_same(*ranks, "--resume", resume ? "set" : "not set");
      from.resumes = ranks->largest(from.resumes || ranks->round() > 1 ? 1 : 0) != 0;
    }
    config = use_threads(std::move(config), launch.local_ranks);
    if (ranks != nullptr) {
      use_common_threads(config, *ranks);
      ranks->watch(config.output.dir, config.elastic.stall_seconds);
    }
    Output output = output_of(launch, config.output.dir);
    leaving_its_flight(ranks.get(), /*has_begun=*/false, [&] {
      run.emplace(std::move(config), launch, ranks, std::move(output), from, files, profile, left ? &*left : nullptr);
    });
  });
  left.reset();
  try {
    int status = 0;
    {
      // The signals are caught for longer than the run: agents stop a rank that has lost others, and it must still
      // report that.
      const StopSignals signals;
      status = leaving_its_flight(ranks.get(), /*has_begun=*/true, [&] { return run->run(); });
    }
    wait_for_own_agent(launch, status);
    return status;
  } catch (const LostRank&) {
    if (may_rejoin) left = run->leave();
    throw;
  } catch (const UserError& error) {
    throw RunFailure(error.what());
  }
}

}  // namespace

int train(RunConfig config, bool resume, FileSystem& files, const std::filesystem::path& profile) {
  const Launch launch = launch_of([](const char* name) { return std::getenv(name); });
  check_profile(profile, config);
  if (launch.ranks == 1 || !is_searched(config)) strategy_of(config, launch);  // refused before the ranks meet
  USER_CHECK(launch.ranks == 1 || config.train.mode == name_of(Mode::kFast),
             "train.mode = \"{}\": on {} ranks a step runs as a Graph or not at all: choose \"fast\"",
             config.train.mode, launch.ranks);
  if (launch.ranks > 1 && config.train.device == kAutoDevice) config.train.device = "cpu";
  USER_CHECK(
      launch.local_ranks == 1 || config.train.device.find(':') == std::string::npos,
      "train.device = \"{}\": {} ranks of this machine each have the device of their number: leave the number out",
      config.train.device, launch.local_ranks);
  USER_CHECK(config.elastic.rejoin_seconds == 0 || !launch.is_of_agent(),
             "elastic.rejoin_seconds = {:g}: {} ends all ranks when one is lost: leave the key out",
             config.elastic.rejoin_seconds, launch.by);
  if (launch.ranks > 1) {
    take_all_open_files();
    outlive_readers();
  }
  if (launch.is_of_agent()) StopSignals::set_agent(getppid());
  end_with_agent(launch);
  std::optional<LeftBehind> left;
  for (bool rejoins = false;; rejoins = true) try {
      return train_together(config, launch, resume, rejoins, files, profile, left);
    } catch (const LostRank& error) {
      if (config.elastic.rejoin_seconds == 0 || StopSignals::received() != 0) throw;
      log().warn("{}; waiting {} for a rank in its place", error.what(), human_seconds(config.elastic.rejoin_seconds));
    }
}

}  // namespace stepc::train
