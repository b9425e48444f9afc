// What a person asks of a step that is spread over a mesh: how every value lies and why, which matmuls no axis splits,
// what is padded because it does not divide. Pure functions of what propagate_shardings() gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/partition/shardings/propagate_shardings.h"

namespace stepc {

// A line a value, graph inputs first: value, type, how it lies, what makes it and for which module, why it lies so.
std::string shardings_text(const ShardedStep& step);

// A matmul, an attention, a loss over classes or an opaque call that every rank along `axes` does as a whole. Data axes
// (dp_replicate, dp_shard, cp) count as one: who splits the rows over one of them has split them. So do model axes (tp,
// ep).
struct WholeWork {
  NodeId node;
  std::vector<std::string> axes;
  double share = 0;    // of the flops of all such nodes
  uint64_t bytes = 0;  // of its operands and results, as one device has them
  std::string why;
};
std::vector<WholeWork> whole_work(const ShardedStep& step);
// A table, the largest share first, or a line that says that there is none.
std::string to_text(const std::vector<WholeWork>& whole, const ShardedStep& step);

// A dimension of batch tensors or parameters that is split over more ranks than divide it.
struct Padded {
  InputKind kind = InputKind::kBatch;
  std::string key;  // of the first
  size_t more = 0;  // others that are split alike
  size_t dim = 0;
  std::vector<int64_t> parts;  // what the dimension is made of, major to minor
  int64_t ranks = 1;
  int64_t local = 0;  // elements on each rank, padding among them
  bool operator==(const Padded&) const = default;
};
// By the inputs of a rank's step, in their order.
std::vector<Padded> padded_inputs(const Graph& local);
// A line each: "padded: parameter 'lm_head.weight', dimension 0: 97 over 2 ranks are 49 on each".
std::string to_text(const std::vector<Padded>& padded);

}  // namespace stepc
