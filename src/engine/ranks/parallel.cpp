#include "engine/ranks/parallel.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "comm/ranks.h"
#include "comm/watch/agent.h"
#include "comm/watch/watchdog.h"
#include "engine/ranks/stage_cuts.h"

namespace stepc {

namespace {

// The time that torch.distributed waits on CPUs: a rank may have more work before it joins.
constexpr std::chrono::minutes kToMeet{30};

}  // namespace

Parallel in_micro_batches(int64_t count) { return {.micro_batches = count, .ranks = Ranks::threads(1)[0]}; }

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
  USER_CHECK(!is_staged || !parallel.means_by_rank,
             "loss_mean is \"ranks\", and the step is cut into micro-batches, whose mean is "
             "that of all rows: take loss_mean=\"all\"");
  if (parallel.is_searched) return strategy;
  USER_CHECK(pipeline.ranks > 1 || (pipeline.stages.empty() && pipeline.chunks == 1),
             "parallel has {}, and no axis pp above 1, which is cut into stages",
             pipeline.stages.empty() ? "chunks" : "stages");
  if (is_staged) order_of(pipeline);
  return strategy;
}

Pipeline pipeline_of(const Parallel& parallel, const Strategy& strategy) {
  const auto pp = strategy.mesh.find("pp");
  return {pp ? strategy.mesh.size(*pp) : 1, parallel.micro_batches, parallel.stages, parallel.order, parallel.chunks};
}

std::shared_ptr<Ranks> ranks_of_process(const Launch& launch, const Parallel::Elastic& elastic) {
  return ranks_of_process(launch, c10::intrusive_ptr<c10d::Store>(), elastic);
}

// Lives as long as the process, whose steps share it. A group that disappears while others wait for it looks like a
// lost rank.
std::shared_ptr<Ranks> ranks_of_process(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store,
                                        const Parallel::Elastic& elastic) {
  struct Met {
    std::shared_ptr<Ranks> ranks;
    double stall_seconds = 0;
  };
  static std::mutex mutex;
  static auto* const kMet = new Met();
  const std::lock_guard lock(mutex);
  const double seconds =
      elastic.stall_seconds.value_or(kMet->ranks == nullptr ? kStallSecondsOfPrograms : kMet->stall_seconds);
  USER_CHECK(seconds >= 1 && seconds <= 86400, "elastic.stall_seconds = {:g}; it is a number from 1 to 86400", seconds);
  if (kMet->ranks == nullptr) {
    if (launch.ranks > 1) end_with_agent(launch);
    const auto to_answer = std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
    kMet->ranks = Ranks::join(launch, store, kToMeet, to_answer);
    kMet->stall_seconds = seconds;
    if (launch.ranks > 1) kMet->ranks->watch({}, seconds);
  }
  USER_CHECK(kMet->stall_seconds == seconds,
             "elastic.stall_seconds = {:g}, and the ranks of this process have met with {:g}: give all steps the same",
             seconds, kMet->stall_seconds);
  if (Watchdog* const watchdog = kMet->ranks->watchdog(); watchdog != nullptr && !elastic.output_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(elastic.output_dir, error);
    USER_CHECK(!error, "elastic.output_dir = {}: {}", elastic.output_dir.string(), error.message());
    watchdog->leave_in(elastic.output_dir);
  }
  return kMet->ranks;
}

}  // namespace stepc
