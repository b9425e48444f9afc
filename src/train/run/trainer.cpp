#include "train/run/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/launch.h"
#include "comm/ranks.h"
#include "engine/config.h"
#include "train/config/parallel.h"
#include "train/config/run_config_keys.h"
#include "train/machine/machine.h"
#include "train/run/run.h"
#include "train/run/run_start.h"
#include "train/run/same_on_all.h"

namespace stepc::train {

namespace {

// A rank that has not answered for that long is given up: a minute later all the others have ended.
constexpr std::chrono::seconds kToMeet{60}, kToAnswer{45};

// Of the file that runs: equal plans of unlike programs may still compute otherwise.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return hash_text(hash_bytes(std::as_bytes(std::span(bytes))));
}

// One plan is of one number of threads: the least that a machine gives its ranks.
void use_common_threads(RunConfig& config, Ranks& ranks) {
  int64_t least = config.train.threads;
  for (const std::string& given : ranks.exchange(str("{}", least))) least = std::min(least, int64_t{std::stoll(given)});
  if (least < config.train.threads)
    log().warn("this machine has {} threads for each of its ranks, another one {}: all compute with so many",
               config.train.threads, least);
  config.train.threads = least;
  config = use_threads(std::move(config));
}

}  // namespace

int train(RunConfig config, bool resume, FileSystem& files, const std::filesystem::path& profile) {
  const Launch launch = launch_of([](const char* name) { return std::getenv(name); });
  resume = resume || launch.restart > 0;  // what the attempt before has saved is this run's own
  check_profile(profile, config);
  if (launch.ranks == 1 || !is_searched(config)) strategy_of(config, launch);  // refused before the ranks meet
  USER_CHECK(launch.ranks == 1 || config.train.mode == name_of(Mode::kFast),
             "train.mode = \"{}\": on {} ranks a step runs as a Graph or not at all: choose \"fast\"",
             config.train.mode, launch.ranks);
  USER_CHECK(launch.ranks == 1 || config.train.device == "cpu",
             "train.device = \"{}\": {} ranks train on CPUs alone; give one rank, or \"cpu\"", config.train.device,
             launch.ranks);
  const std::shared_ptr<Ranks> ranks = launch.ranks > 1 ? Ranks::join(launch, kToMeet, kToAnswer) : nullptr;
  std::optional<Run> run;
  or_fail_together(ranks.get(), [&] {
    if (ranks != nullptr) {
      check_same(*ranks, "the program", program_hash());
      check_same_config(*ranks, config);
      check_same(*ranks, "--resume", resume ? "set" : "not set");
    }
    config = use_threads(std::move(config), launch.local_ranks);
    if (ranks != nullptr) use_common_threads(config, *ranks);
    Output output = output_of(launch, config.output.dir);
    run.emplace(std::move(config), launch, ranks, std::move(output), resume, files, profile);
  });
  try {
    return run->run();
  } catch (const LostRank&) {
    throw;
  } catch (const UserError& error) {
    throw RunFailure(error.what());
  }
}

}  // namespace stepc::train
