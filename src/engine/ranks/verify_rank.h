// The proof of a rank's plan: before it counts, its run is compared with that of the plain Graph of the same rank (one
// ATen call a node, nothing fused, collectives included), from the same state and with the same random draws. Both are
// dry runs: they change nothing, and take the plan's memory. All ranks compare together, and reach one verdict.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/ranks.h"
#include "engine/plan/compile.h"
#include "ir/trace.h"

namespace stepc {

// What is compared, and how an executor of this step is run here.
struct RankProof {
  Compiled& plan;
  const Trace& trace;
  KernelSources& kernels;
  const CompileOptions& options;  // that the plan was made with
  std::shared_ptr<Ranks> ranks;
  std::function<RunInputs(Executor&)> inputs;
  std::function<void(Executor&)> supply;  // the numbers of the host, as they are now
};

struct RankVerdict {
  std::string with;        // what the plan was compared with, or why it was not compared; for reports
  bool is_decided = true;  // no: the step meets what it was not recorded with, and its run says so itself
  bool compared = false;
  // Tensor, rank and op, the same text on all ranks; empty: no rank's plan differs.
  std::string difference;
  // A second run of the plan came to what the plain Graph comes to: a machine erred, not the plan.
  bool is_transient = false;
};

// `plain`: empty, or that of an earlier call; afterwards the plain Graph, bound, where it was compared with and runs.
RankVerdict verify_rank(const RankProof& proof, Compiled& plain);

}  // namespace stepc
