#include "engine/ranks/parallel.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "comm/ranks.h"
#include "engine/ranks/stage_cuts.h"

namespace stepc {

namespace {

// As long as torch.distributed waits on CPUs.
constexpr std::chrono::minutes kTimeout{30};

}  // namespace

Parallel::Batch parse_batch(std::string_view text) {
  if (text == "local") return Parallel::Batch::kLocal;
  if (text == "global") return Parallel::Batch::kGlobal;
  user_error("batch is \"{}\"; it is \"local\" or \"global\"", text);
}

Strategy strategy_of(const Parallel& parallel, int64_t ranks) {
  USER_CHECK(!parallel.means_by_rank || parallel.batch == Parallel::Batch::kLocal,
             "loss_mean is \"ranks\" and batch is \"global\": means of the ranks are of each rank's own rows, "
             "batch=\"local\"");
  std::vector<MeshAxis> axes = parallel.is_searched ? std::vector<MeshAxis>{{"dp_shard", ranks}} : parallel.axes;
  MeshAxis* rest = nullptr;
  int64_t others = 1;
  for (MeshAxis& axis : axes) {
    USER_CHECK(axis.size >= 1 || axis.size == -1, "parallel has {} = {}; it is at least 1, or -1 for the ranks left",
               axis.name, axis.size);
    USER_CHECK(axis.size != -1 || rest == nullptr, "parallel has {} = -1 and {} = -1; one axis takes the ranks left",
               rest == nullptr ? "" : rest->name, axis.name);
    if (axis.size == -1)
      rest = &axis;
    else
      others *= axis.size;
  }
  if (rest != nullptr) {
    rest->size = std::max<int64_t>(1, ranks / others);
    USER_CHECK(
        ranks % others == 0,
        "parallel has {} = -1, and the other axes have {} ranks, of which {} is no multiple; the nearest mesh is "
        "{}",
        rest->name, others, ranks, to_text(nearest_mesh(make_mesh(axes), ranks)));
  }
  Strategy strategy;
  strategy.mesh = make_mesh(axes);
  USER_CHECK(!strategy.mesh.find(kMicroBatchAxis),
             "parallel has the axis {}; how many micro-batches there are is said by micro_batches", kMicroBatchAxis);
  strategy.zero = parallel.zero > 0 ? parallel.zero : Strategy().zero;
  strategy.sequence_parallel = parallel.sequence_parallel;
  strategy.reduce = parallel.reduce;
  strategy.means_by_rank = parallel.means_by_rank;
  strategy.context = parallel.context;
  strategy.rules = parallel.rules;
  if (parallel.overlap) strategy.overlap_bytes = kOverlapBytes;
  const int64_t wanted = strategy.mesh.ranks();
  USER_CHECK(ranks > 1 || wanted == 1,
             "parallel asks for {} ranks ({}), and this process runs alone: start it with torchrun --nproc-per-node {}",
             wanted, to_text(strategy.mesh), wanted);
  USER_CHECK(
      wanted == ranks,
      "parallel asks for {} ranks ({}), and {} were started; the nearest mesh of those is {}, and -1 takes what the "
      "others leave",
      wanted, wanted == 1 ? "no axis is above 1" : to_text(strategy.mesh), ranks,
      to_text(nearest_mesh(strategy.mesh, ranks)));
  if (!parallel.is_searched) check(strategy);
  const Pipeline pipeline = pipeline_of(parallel, strategy);
  USER_CHECK(pipeline.micro_batches >= 1, "micro_batches is {}; the least is 1", pipeline.micro_batches);
  const bool is_staged = pipeline.ranks > 1 || pipeline.micro_batches > 1;
  USER_CHECK(pipeline.ranks > 1 || (pipeline.stages.empty() && pipeline.chunks == 1),
             "parallel has {}, and no axis pp above 1, which is cut into stages",
             pipeline.stages.empty() ? "chunks" : "stages");
  if (!is_staged) return strategy;
  USER_CHECK(!parallel.is_searched, "parallel is \"auto\", and micro_batches = {}: it chooses no micro-batches yet",
             pipeline.micro_batches);
  USER_CHECK(!parallel.means_by_rank,
             "loss_mean is \"ranks\", and the step is cut into micro-batches, whose mean is "
             "that of all rows: take loss_mean=\"all\"");
  order_of(pipeline);
  return strategy;
}

Pipeline pipeline_of(const Parallel& parallel, const Strategy& strategy) {
  const auto pp = strategy.mesh.find("pp");
  return {pp ? strategy.mesh.size(*pp) : 1, parallel.micro_batches, parallel.stages, parallel.order, parallel.chunks};
}

std::shared_ptr<Ranks> ranks_of_process(const Launch& launch) {
  return ranks_of_process(launch, c10::intrusive_ptr<c10d::Store>());
}

// Kept to the end of the process, whose steps share it: a group that goes while others wait in it looks like a lost
// rank.
std::shared_ptr<Ranks> ranks_of_process(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store) {
  static std::mutex mutex;
  static auto* const kMet = new std::shared_ptr<Ranks>();
  const std::lock_guard lock(mutex);
  if (*kMet == nullptr) *kMet = Ranks::join(launch, store, kTimeout, kTimeout);
  return *kMet;
}

}  // namespace stepc
