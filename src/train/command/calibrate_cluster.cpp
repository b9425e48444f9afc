#include "train/command/calibrate_cluster.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/files.h"
#include "calibrate/measure_links.h"
#include "cost/cluster.h"
#include "engine/prediction.h"
#include "engine/ranks/choose_mesh.h"
#include "runtime/micro_kernels.h"
#include "train/command/local_ranks.h"
#include "train/machine/kernel_directory.h"

namespace stepc::train {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::minutes kToMeet(2), kToAnswer(2);

int start_here(const CalibrateCommand& command, const Launch& launch) {
  USER_CHECK(launch.by.empty(), "--ranks {}: {} started {} ranks already; leave --ranks out", command.ranks, launch.by,
             launch.ranks);
  const fs::path logs = fs::temp_directory_path() / fmt::format("stepc-calibrate-{}", ::getpid());
  make_directories(logs);
  LocalRanks local;
  local.ranks = command.ranks;
  local.command = {fs::read_symlink("/proc/self/exe").string(), "calibrate", "--cluster",
                   fs::absolute(command.cluster).string()};
  if (command.threads > 0) local.command.insert(local.command.end(), {"--threads", std::to_string(command.threads)});
  if (!command.kernels.empty())
    local.command.insert(local.command.end(), {"--kernels", fs::absolute(command.kernels).string()});
  local.logs = logs;
  const int status = run_local_ranks(local);
  std::error_code ignored;
  fs::remove_all(logs, ignored);
  return status;
}

}  // namespace

int calibrate_cluster(const CalibrateCommand& command) {
  const Launch launch = launch_of([](const char* name) { return std::getenv(name); });
  if (command.ranks > 0) return start_here(command, launch);
  USER_CHECK(launch.ranks > 1,
             "--cluster {}: one process has no links; give --ranks, or start it with torchrun or mpirun",
             command.cluster.string());
  USER_CHECK(launch.ranks % launch.local_ranks == 0, "{} of {} ranks are on this machine: a cluster has equal machines",
             launch.local_ranks, launch.ranks);
  if (command.threads > 0) at::set_num_threads(command.threads);
  const std::shared_ptr<Ranks> ranks = Ranks::join(launch, kToMeet, kToAnswer);
  const bool is_first = ranks->rank() == 0;
  const std::vector<MeasuredLink> links = measure_links(*ranks, launch.local_ranks, [&](const std::string& what) {
    if (is_first) fmt::print(stderr, "measuring {} ...\n", what);
  });
  if (!is_first) return 0;
  const fs::path kernels = command.kernels.empty() ? kernel_directory() : command.kernels;
  const KnownTarget known = known_target(kernels, features_of(probe_micro_kernels()), at::get_num_threads());
  Cluster cluster = cluster_of_ranks(known.target, launch.ranks, launch.local_ranks, {});
  cluster.name = command.cluster.stem().string();
  cluster.device = cluster.name + "-target.toml";
  for (const MeasuredLink& one : links) {
    fmt::print("{}", to_text(one));
    cluster.target.rates.links.push_back(one.link);
  }
  const fs::path beside = command.cluster.parent_path() / cluster.device;
  write_file_synced(beside, to_text(known.target));
  write_file_synced(command.cluster, to_text(cluster));
  fmt::print("{}, {}: for `stepc plan --cluster` and parallel.cluster{}\n", command.cluster.string(), beside.string(),
             known.is_calibrated ? "" : "; the rates of its devices are defaults, which `stepc calibrate` measures");
  return 0;
}

}  // namespace stepc::train
