// Reports for a person about a step on a mesh: the sharding of every value with the reason, the matmuls that no axis
// splits, the padding of dimensions that do not divide. Pure functions of the results of propagate_shardings().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/partition/shardings/propagate_shardings.h"

namespace stepc {

// One line for each value, graph inputs first: value, type, sharding, its node and module, and the reason.
std::string shardings_text(const ShardedStep& step);

// A matmul, an attention, a loss over classes or an opaque call that every rank along `axes` computes as a whole. Data
// axes (dp_replicate, dp_shard, cp) count as one: a split over any of them splits the rows. So do model axes (tp, ep).
struct WholeWork {
  NodeId node;
  std::vector<std::string> axes;
  double share = 0;    // of the flops of all such nodes
  uint64_t bytes = 0;  // of its operands and results on one device
  std::string why;
};
std::vector<WholeWork> whole_work(const ShardedStep& step);
// A table, the largest share first, or a line that says that there is none.
std::string to_text(const std::vector<WholeWork>& whole, const ShardedStep& step);

// A dimension of batch tensors or parameters that is split over more ranks than divide it.
struct Padded {
  InputKind kind = InputKind::kBatch;
  std::string key;  // of the first tensor
  size_t more = 0;  // other tensors with the same split
  size_t dim = 0;
  std::vector<int64_t> parts;  // the factors of the dimension, major to minor
  int64_t ranks = 1;
  int64_t local = 0;  // elements on each rank, with padding
  bool operator==(const Padded&) const = default;
};
// For the inputs of a rank's step, in their order.
std::vector<Padded> padded_inputs(const Graph& local);
// One line each: "padded: parameter 'lm_head.weight', dimension 0: 97 over 2 ranks are 49 on each".
std::string to_text(const std::vector<Padded>& padded);

}  // namespace stepc
