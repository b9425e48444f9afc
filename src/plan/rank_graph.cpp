#include "plan/rank_graph.h"

namespace stepc {

void set_machine(PassSettings& settings, const Features& features) {
  settings.is_for_gpu = features.sm > 0;
  settings.has_fp8 = has_fp8(features);
}

Graph rank_graph(const Graph& captured, const Strategy& strategy, const Features& features,
                 const std::optional<Fp8Recipe>& fp8) {
  RunOptions passes;
  passes.settings.strategy = strategy;
  set_machine(passes.settings, features);
  passes.settings.fp8 = fp8;
  passes.without = {"recompute", "merge_collectives", "cut_exchanges", "split_collectives", "sum_matmuls", "fuse",
                    "order"};
  return run_passes(captured, passes).graph;
}

}  // namespace stepc
