// recompute: recomputes in the backward pass what the forward pass keeps only for it, if that is worth its bytes. The
// cheapest come first: pointwise chains, then reductions and normalisations, attention, matmuls; among one kind, those
// with the most bytes for the least time by the cost model. Exchanges are made twice where nothing else meets a budget.
// Draws of a stream give the same numbers again; opaque calls are never repeated. All results keep their bits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cost/target.h"
#include "ir/graph.h"
#include "ops/rules/matmul_rule.h"

namespace stepc {

class KnownGroups;

// Choices that were fused for one budget, kept for the next: a caller that asks for the same graph with several
// budgets, one after the other, passes the same looks. Each takes about the memory of a graph.
class RecomputeLooks {
 public:
  RecomputeLooks();
  ~RecomputeLooks();
  RecomputeLooks(const RecomputeLooks&) = delete;
  RecomputeLooks& operator=(const RecomputeLooks&) = delete;

 private:
  friend class LooksOf;
  struct Known;
  std::unique_ptr<Known> known_;
};

struct RecomputeOptions {
  // The target for the peak of live bytes, without the program's own memory (parameters, state, batch). None: as low as
  // `most_extra` of the step's time allows.
  std::optional<uint64_t> budget_bytes;
  // For a graph of few layers that stands for one of many: the number of missing layers for each layer that it has. All
  // peaks include what the missing ones keep for the backward pass.
  double more_layers = 0;
  double most_extra = 0.08;  // without a budget
  Target target = {};
  MatmulRule matmuls = {};  // the rule that fuse() will get
  std::shared_ptr<RecomputeLooks> looks = {};
  std::shared_ptr<KnownGroups> groups = {};  // of other graphs (passes/fusion/known_groups.h)
  std::vector<bool> never =
      {};  // by node: runs once, whatever it costs to keep what it makes; none: each may run twice
};

struct RecomputeResult {
  Graph graph;
  uint64_t peak_before = 0;  // fused, in the best order that was tried
  uint64_t peak_after = 0;   // never above peak_before
  size_t nodes = 0;          // nodes that run twice
  size_t looks = 0;          // choices that were fused and ordered to find their peak
  double step_seconds = 0;   // predicted, before recomputation
  double extra_seconds = 0;
  std::string why_not;  // empty: the budget, if any, is met
};

RecomputeResult recompute(Graph graph, const RecomputeOptions& options = {});

}  // namespace stepc
