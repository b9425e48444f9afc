#include "passes/stages/recompute_stages.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace stepc {

namespace {

// The nodes that run once: those which make what another stage reads; those of the last stage, whose forward pass and
// backward pass are one function, which its own plan sees to; and those of modules that run in several stages or in
// none, whose copies would have no place of their own.
std::vector<bool> never_again(const Graph& graph, const StagePlaces& places) {
  std::map<std::string, std::set<int64_t>> of_module;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (const auto& place = places.of_node[n]; place && !place->is_backward)
      of_module[graph.nodes[n].source.module].insert(place->stage);
  std::vector<bool> never(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& place = places.of_node[n];
    if (place) {
      const std::string& module = graph.nodes[n].source.module;
      never[n] = place->stage + 1 == places.stages || module.empty() || of_module[module].size() != 1;
    }
    for (TensorId input : graph.nodes[n].inputs) {
      const NodeId maker = graph.tensors[input.index()].producer;
      if (!maker.valid()) continue;
      const auto& from = places.of_node[maker.index()];
      if (from && place && from->stage != place->stage) never[maker.index()] = true;
    }
  }
  return never;
}

}  // namespace

RecomputeResult recompute_stages(Graph micro_batch, const StagePlaces& places, RecomputeOptions options) {
  options.never = never_again(micro_batch, places);
  return recompute(std::move(micro_batch), options);
}

}  // namespace stepc
