#include "train/config/parallel.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/text.h"
#include "plan/stages/stage_order.h"

namespace stepc::train {

namespace {
std::string nearest_text(const Mesh& mesh, int64_t ranks) {
  const Mesh nearest = nearest_mesh(mesh, ranks);
  return nearest.axes.empty() ? "none" : to_text(nearest);
}

// The ranks of dp_shard: -1, and no setting of any axis, take the ranks that the other axes leave.
int64_t shards_of(const RunConfig::Parallel& parallel) {
  if (!has_axes(parallel)) return std::max<int64_t>(parallel.ranks, 1);
  USER_CHECK(parallel.dp_shard != 0, "parallel.dp_shard = 0: must be at least 1, or -1 for the ranks left over");
  if (parallel.dp_shard > 0) return parallel.dp_shard;
  USER_CHECK(parallel.ranks > 0,
             "parallel.dp_shard = -1 is the ranks that the other axes leave: give parallel.ranks, how many there are");
  const Mesh others = make_mesh(
      {{"pp", parallel.pp}, {"dp_replicate", parallel.dp_replicate}, {"cp", parallel.cp}, {"tp", parallel.tp}});
  USER_CHECK(parallel.ranks % others.ranks() == 0,
             "parallel.dp_shard = -1: the other axes have {} ranks, of which parallel.ranks = {} is no multiple; the "
             "nearest mesh is {}",
             others.ranks(), parallel.ranks,
             nearest_text(make_mesh({{"pp", parallel.pp},
                                     {"dp_replicate", parallel.dp_replicate},
                                     {"dp_shard", std::max<int64_t>(1, parallel.ranks / others.ranks())},
                                     {"cp", parallel.cp},
                                     {"tp", parallel.tp}}),
                          parallel.ranks));
  return parallel.ranks / others.ranks();
}

// Checks the axes against the started ranks: given axes hold, and the remaining ones follow from the number of ranks.
void check_pins(const RunConfig::Parallel& parallel, const Launch& launch) {
  std::vector<MeshAxis> pins;
  std::vector<std::string> names;
  for (const MeshAxis& axis :
       {MeshAxis{"pp", parallel.pp}, MeshAxis{"dp_replicate", parallel.dp_replicate},
        MeshAxis{"dp_shard", parallel.dp_shard}, MeshAxis{"cp", parallel.cp}, MeshAxis{"tp", parallel.tp}}) {
    if (axis.size <= 1) continue;
    pins.push_back(axis);
    names.push_back(str("parallel.{} = {}", axis.name, axis.size));
  }
  const Mesh pinned = make_mesh(pins);
  const bool follows = parallel.dp_shard == -1 || pins.empty();
  if (follows ? launch.ranks % pinned.ranks() == 0 : launch.ranks == pinned.ranks()) return;
  user_error("{} {} {}{} ranks, and {} started {}: the nearest mesh is {}{}", fmt::join(names, " and "),
             names.size() == 1 ? "takes" : "take", follows ? "a multiple of " : "", pinned.ranks(), launch.by,
             launch.ranks, nearest_text(pinned, launch.ranks),
             follows ? "" : ", and parallel.dp_shard = -1 takes what the others leave");
}
}  // namespace

bool has_axes(const RunConfig::Parallel& parallel) {
  return parallel.pp != 1 || parallel.dp_replicate != 1 || parallel.dp_shard != 1 || parallel.cp != 1 ||
         parallel.tp != 1;
}

bool is_searched(const RunConfig& config) { return config.parallel.strategy == "auto"; }

Strategy without_mesh(const RunConfig::Parallel& parallel) {
  Strategy strategy;
  strategy.sequence_parallel = parallel.sequence_parallel;
  strategy.context = parse_context(parallel.context);
  strategy.reduce = parse_reduce(parallel.reduce);
  if (parallel.overlap) strategy.overlap_bytes = kOverlapBytes;
  strategy.rules = parallel.shard;
  return strategy;
}

Strategy strategy_of(const RunConfig& config) {
  const RunConfig::Parallel& parallel = config.parallel;
  Strategy strategy = without_mesh(parallel);
  strategy.mesh = make_mesh({{"pp", parallel.pp},
                             {"dp_replicate", parallel.dp_replicate},
                             {"dp_shard", shards_of(parallel)},
                             {"cp", parallel.cp},
                             {"tp", parallel.tp}});
  strategy.zero = static_cast<int>(parallel.zero);
  const int64_t ranks = strategy.mesh.ranks();
  USER_CHECK(parallel.ranks == 0 || parallel.ranks == ranks,
             "parallel.ranks = {}, and the axes multiply to {}: {}; of {} ranks the nearest mesh is {}, and "
             "parallel.dp_shard = -1 takes what the others leave",
             parallel.ranks, ranks, ranks == 1 ? "none is above 1" : to_text(strategy.mesh), parallel.ranks,
             nearest_text(strategy.mesh, parallel.ranks));
  check(strategy);
  check_stages(config);
  return strategy;
}

Strategy strategy_of(RunConfig config, const Launch& launch) {
  RunConfig::Parallel& parallel = config.parallel;
  if (launch.by.empty()) {
    const Strategy strategy = strategy_of(config);
    USER_CHECK(strategy.mesh.ranks() == 1,
               "[parallel] asks for {}, and this process runs alone: start it with --ranks {}, torchrun or mpirun",
               to_text(strategy), strategy.mesh.ranks());
    return strategy;
  }
  USER_CHECK(parallel.ranks == 0 || parallel.ranks == launch.ranks, "parallel.ranks = {}, and {} started {} ranks",
             parallel.ranks, launch.by, launch.ranks);
  parallel.ranks = launch.ranks;
  check_pins(parallel, launch);
  return strategy_of(config);
}

std::string to_text(const Strategy& strategy) {
  std::string text = str("{} ranks ({})", strategy.mesh.ranks(), to_text(strategy.mesh));
  if (!state_axes(strategy.mesh).empty()) text += str(", zero {}", strategy.zero);
  if (strategy.mesh.find("tp") && !strategy.sequence_parallel) text += ", without sequence_parallel";
  if (strategy.mesh.find("cp") && strategy.context != Context::kByPrice)
    text += str(", context = \"{}\"", name_of(strategy.context));
  if (strategy.overlap_bytes) text += ", overlap";
  if (strategy.reduce != DType::kF32) text += str(", gradients sent as {}", name_of(strategy.reduce));
  return text;
}

void check_tensor_parallel(const Strategy& strategy, int64_t heads, int64_t classes) {
  const auto tp = strategy.mesh.find("tp");
  if (!tp) return;
  const int64_t ranks = strategy.mesh.size(*tp);
  std::vector<int64_t> even;
  for (int64_t size = 2; size <= heads; ++size)
    if (heads % size == 0) even.push_back(size);
  USER_CHECK(ranks <= heads, "parallel.tp = {}: the model has {} {}, and none is split; tp can be at most {}{}", ranks,
             heads, heads == 1 ? "head" : "heads", heads,
             even.empty() ? "" : str(", and nothing is padded at {}", fmt::join(even, ", ")));
  USER_CHECK(ranks <= classes, "parallel.tp = {}: the model has {} classes, and each rank needs one", ranks, classes);
}

void check_context_parallel(const Strategy& strategy, int64_t tokens) {
  const auto cp = strategy.mesh.find("cp");
  if (!cp) return;
  USER_CHECK(strategy.mesh.size(*cp) <= tokens,
             "parallel.cp = {}: the longest row has {} tokens, and each rank needs one; cp can be at most {}",
             strategy.mesh.size(*cp), tokens, tokens);
}

void check_pipeline(const RunConfig& config, int64_t layers) {
  const RunConfig::Parallel& parallel = config.parallel;
  if (parallel.pp == 1 || !parallel.stages.empty()) return;
  const int64_t chunks = chunks_of(pipeline_of(config));
  USER_CHECK(parallel.pp * chunks <= layers, "parallel.pp = {}{}: the model has {} layer{}, and each stage needs one{}",
             parallel.pp, chunks == 1 ? std::string() : str(" with {} stages a rank", chunks), layers,
             layers == 1 ? "" : "s",
             layers / chunks < 2 ? std::string() : str("; pp can be at most {}", layers / chunks));
}

Pipeline pipeline_of(const RunConfig& config) {
  const RunConfig::Parallel& parallel = config.parallel;
  return {parallel.pp, config.train.micro_batches, parallel.stages, parallel.order, parallel.chunks};
}

void check_stages(const RunConfig& config) {
  const RunConfig::Parallel& parallel = config.parallel;
  if (parallel.pp == 1) return;
  try {
    order_of(pipeline_of(config));
  } catch (const UserError& error) {
    user_error("parallel.pp = {}: {}", parallel.pp, error.what());
  }
}

}  // namespace stepc::train
