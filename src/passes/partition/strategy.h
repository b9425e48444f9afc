// Strategy: how a step is spread over devices, as a person chooses it. Plain data. A preset only gives shardings to the
// step's inputs; all other shardings follow from these (propagate_shardings).
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

// Dimension `dim` of parameters whose key matches `pattern` ('*' matches any text) is split along axis `axis`.
struct ShardRule {
  std::string pattern;
  std::map<size_t, std::string> dims;
  bool operator==(const ShardRule&) const = default;
};

// How attention sees a whole sequence that is split over cp. kGather: keys and values are gathered. kHeads: by
// all-to-all each rank gets all tokens of some heads. kRing: keys and values rotate around the ranks, and the results
// for each part are merged (passes/partition/ring_attention.h). kByPrice: the cheaper of the latter two, of those that
// the step allows (plan/plan_graph.h); otherwise the first, which every step allows.
enum class Context : uint8_t { kGather, kHeads, kRing, kByPrice };
// "gather", "heads", "ring", "auto". Throws UserError for any other text.
Context parse_context(std::string_view text);
std::string_view name_of(Context context);

// The dtype in which gradients are sent: "float32" or "bfloat16". Throws UserError for any other text.
DType parse_reduce(std::string_view text);

// A kind of context parallelism that a step does not allow: its heads or tokens do not divide.
class UnfitContext : public UserError {
 public:
  using UserError::UserError;
};

// An exchange of fewer bytes takes no longer than a message, so hiding it gains nothing.
inline constexpr uint64_t kOverlapBytes = uint64_t{64} << 10;

struct Strategy {
  Mesh mesh;
  // What is split over dp_shard and cp beside the batch and the sequence: 0 nothing, 1 optimizer state, 2 gradients
  // too, 3 parameters too. 1 and 2 differ in a step of several micro-batches: over these axes, 1 reduces their
  // gradients once, 2 each time.
  int zero = 3;
  // Splits along the sequence what lies between the matmuls of tensor parallelism.
  bool sequence_parallel = true;
  std::vector<ShardRule> rules = {};
  // Axes along which the backward pass and other micro-batches keep what the forward pass has gathered, instead of
  // gathering it again. Gradients of micro-batches are then added up before they are reduced over dp_shard. This sends
  // less and holds more; a memory budget chooses it (plan/plan_graph.h).
  std::vector<std::string> keeps = {};
  Context context = Context::kGather;
  // A dtype narrower than a gradient's own: ranks send gradients in it, and still add them in float32. kF32: as they
  // are.
  DType reduce = DType::kF32;
  // A batch is a rank's own rows along dp_replicate and dp_shard, and a loss is the mean of the ranks' losses on these,
  // as under DDP. Otherwise a batch is all rows, and a mean covers all rows (passes/partition/means_by_rank.h).
  bool means_by_rank = false;
  // The most bytes of collectives that become one exchange (passes/merge_collectives.h); 0: each collective is an
  // exchange.
  uint64_t bucket_bytes = uint64_t{4} << 20;
  // The largest share of one bucket in everything that the forward or the backward pass sends in its way, so that no
  // rank gathers the whole model at once. A model that stands for a deeper one has a larger share (plan/search.h).
  double bucket_share = 1.0 / 8;
  // Exchanges of at least this many bytes run beside the computation (passes/split_collectives.h, plan/overlap.h);
  // none: every exchange blocks.
  std::optional<uint64_t> overlap_bytes = {};
  // By key: shardings of parameters that another program of the run has already split; the update uses the same ones as
  // micro-batches.
  std::map<std::string, Sharding> known = {};
  bool operator==(const Strategy&) const = default;

  [[nodiscard]] bool keeps_along(Axis axis) const;
};

// The axes along which zero splits the state: dp_shard and cp, as far as the mesh has them.
std::vector<Axis> state_axes(const Mesh& mesh);

// The mesh for this many ranks that is nearest to `mesh`: its axes, or dp_shard in addition, multiplied and divided as
// little as possible; dp_shard first.
Mesh nearest_mesh(const Mesh& mesh, int64_t ranks);

// Throws UserError for an invalid zero, and for axes and rules that do not fit each other.
void check(const Strategy& strategy);

}  // namespace stepc
