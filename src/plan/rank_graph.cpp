#include "plan/rank_graph.h"

#include "passes/pass.h"

namespace stepc {

Graph rank_graph(const Graph& captured, const Strategy& strategy, const Features& features,
                 const std::optional<Fp8Recipe>& fp8) {
  RunOptions passes;
  passes.settings.strategy = strategy;
  passes.settings.is_for_gpu = features.sm > 0;
  passes.settings.has_fp8 = has_fp8(features);
  passes.settings.fp8 = fp8;
  passes.without = {"recompute", "merge_collectives", "cut_exchanges", "split_collectives", "fuse", "order"};
  return run_passes(captured, passes).graph;
}

}  // namespace stepc
