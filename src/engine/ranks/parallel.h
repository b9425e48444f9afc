// Config::parallel: how a person wants to spread a step of their own program over ranks. Plain data except for the
// ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "comm/launch.h"
#include "passes/partition/strategy.h"

namespace c10d {
class Store;
}

namespace stepc {

class Ranks;

struct Parallel {
  // What each call is given. kLocal: rows of the rank's own, as under DDP, which together are the batch, in the order
  // of ranks; ranks that share rows (along tp, cp) give the same. kGlobal: the batch, the same on every rank.
  enum class Batch : uint8_t { kLocal, kGlobal };

  std::vector<MeshAxis> axes;  // a size of -1: the ranks that the others leave
  // "auto": the axes that are not given are chosen with the step's first plan (engine/ranks/choose_mesh.h), and how
  // many micro-batches where there is one.
  bool is_searched = false;
  int zero = 3;  // 0, of what is searched: chosen too
  bool sequence_parallel = true;
  DType reduce = DType::kF32;  // Strategy::reduce
  bool means_by_rank = false;  // Strategy::means_by_rank
  Context context = Context::kByPrice;
  std::vector<ShardRule> rules = {};
  // Of an axis pp, or of more than one micro-batch: how the step is cut in time and into stages
  // (engine/ranks/stage_cuts.h).
  int64_t micro_batches = 1;
  std::vector<std::string> stages = {};
  std::string order = "1f1b";
  int64_t chunks = 1;
  bool overlap = false;  // Strategy::overlap_bytes, of kOverlapBytes
  Batch batch = Batch::kLocal;
  // Which dimension of a tensor of the batch is its rows, by name, or by place where it has none; nothing: it has no
  // rows, each rank has the same. Of others it is the first, where that is as long as the first tensor's rows.
  std::map<std::string, std::optional<int64_t>> batch_dims = {};
  struct Elastic {
    // That ranks wait for one that does not answer; nothing: as the process's other steps have it, else
    // kStallSecondsOfPrograms.
    std::optional<double> stall_seconds = {};
    int64_t check_every = 0;  // training calls between comparisons of what ranks hold alike, and before saves; 0: none
    // Where a rank leaves what it did last when the run fails, for `stepc blame`; empty: where the program saves first.
    std::filesystem::path output_dir = {};
  } elastic = {};
  Launch launch = {};                 // who this process is; `launch_of(std::getenv)` asks whoever started it
  std::shared_ptr<Ranks> ranks = {};  // met already; none: those of `launch`, met once a process
};

// "local" or "global". UserError otherwise.
Parallel::Batch parse_batch(std::string_view text);

struct Pipeline;
// Of the strategy's mesh.
Pipeline pipeline_of(const Parallel& parallel, const Strategy& strategy);

// Of so many ranks; of what is searched, until it is chosen: every rank has rows of its own. UserError: axes that
// multiply to another number, names that are none, rules that fit no axis.
Strategy strategy_of(const Parallel& parallel, int64_t ranks);

// The ranks of this process's run, met once and for all: where the launch says, or in a store that the program shares
// with the others already. They are looked after, and end with their agent, as those of `stepc train` do. UserError as
// Ranks::join, and where they have met with another stall time.
std::shared_ptr<Ranks> ranks_of_process(const Launch& launch, const Parallel::Elastic& elastic);
std::shared_ptr<Ranks> ranks_of_process(const Launch& launch, const c10::intrusive_ptr<c10d::Store>& store,
                                        const Parallel::Elastic& elastic);

}  // namespace stepc
