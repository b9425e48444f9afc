// Strategy: how a person wants a step spread over devices. Plain data; a preset is nothing but the shardings that it
// gives to what enters the step, from which all others follow (propagate_shardings).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "ir/graph.h"

namespace stepc {

// Parameters whose key matches `pattern` ('*' stands for any text) have dimension `dim` split along axis `axis`.
struct ShardRule {
  std::string pattern;
  std::map<size_t, std::string> dims;
  bool operator==(const ShardRule&) const = default;
};

// How attention sees all of a sequence that is split over cp: keys and values are gathered; or, by all-to-all, each
// rank has all tokens of some of the heads; or keys and values go around the ranks, and what attention makes of each
// part is merged (passes/partition/ring_attention.h). kByPrice: whichever of the latter two that the step can go costs
// less (plan/plan_graph.h), else the first, which any can.
enum class Context : uint8_t { kGather, kHeads, kRing, kByPrice };
// "gather", "heads", "ring", "auto". UserError for another.
Context parse_context(std::string_view text);
std::string_view name_of(Context context);

// The dtype in which gradients are sent: "float32" or "bfloat16". UserError for another.
DType parse_reduce(std::string_view text);

// A way of attention that a step cannot go: its heads or tokens do not divide.
class UnfitContext : public UserError {
 public:
  using UserError::UserError;
};

// Of fewer bytes an exchange takes no longer than a message does, and begins nothing worth hiding.
inline constexpr uint64_t kOverlapBytes = uint64_t{64} << 10;

struct Strategy {
  Mesh mesh;
  // What is split over dp_shard beside the batch: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
  // 1 and 2 differ where a step has several micro-batches: over dp_shard 1 reduces their gradients once, 2 each.
  int zero = 3;
  // Split what lies between the matmuls of tensor parallelism along the sequence.
  bool sequence_parallel = true;
  std::vector<ShardRule> rules = {};
  // Axes along which what the forward pass gathers is kept for the backward pass and for other micro-batches, where it
  // is otherwise gathered again; over dp_shard gradients of micro-batches are then added up before they are reduced. It
  // sends less and holds more: a budget of memory chooses it (plan/plan_graph.h).
  std::vector<std::string> keeps = {};
  Context context = Context::kGather;
  // A dtype narrower than a gradient's own: ranks send it so, and add up in float32 all the same. kF32: as it is.
  DType reduce = DType::kF32;
  // A batch is a rank's own rows along dp_replicate and dp_shard, and losses are the ranks' means of what each computes
  // of them, as under DDP; else a batch is all rows, and so are means (passes/partition/means_by_rank.h).
  bool means_by_rank = false;
  // Of collectives that are put together into one exchange (passes/merge_collectives.h); 0: each is one of its own.
  uint64_t bucket_bytes = uint64_t{4} << 20;
  // A bucket has at most this part of all that the forward or the backward pass sends in its way: no rank gathers the
  // model at once. A model that stands for a deeper one has a larger part (plan/search.h).
  double bucket_share = 1.0 / 8;
  // Exchanges of at least so many bytes go on beside the computation (passes/split_collectives.h, plan/overlap.h);
  // none: each blocks.
  std::optional<uint64_t> overlap_bytes = {};
  // By key, how parameters lie that another program of the run has split: the update finds them as micro-batches do.
  std::map<std::string, Sharding> known = {};
  bool operator==(const Strategy&) const = default;

  [[nodiscard]] bool keeps_along(Axis axis) const;
};

// Of so many ranks, the mesh that is nearest to `mesh`: its axes, or dp_shard beside them, multiplied and divided by as
// little as it takes; dp_shard first.
Mesh nearest_mesh(const Mesh& mesh, int64_t ranks);

// UserError: a zero that there is none of, axes and rules that do not fit each other.
void check(const Strategy& strategy);

}  // namespace stepc
