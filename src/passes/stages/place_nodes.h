// Which stage of a pipeline each node of a micro-batch belongs to. A stage is a range of the model's modules, in the
// order in which the forward pass runs them; the backward pass of a node stands where its module does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace stepc {

struct StagePlace {
  bool is_backward = false;
  int64_t stage = 0;
  auto operator<=>(const StagePlace&) const = default;
};

struct StagePlaces {
  int64_t stages = 1;
  // By node. nullopt: it follows from the batch alone, or from parameters and constants alone, and is computed wherever
  // it is needed. Else values go from a forward node to one of the same stage or a later one, or to any backward node;
  // from a backward node to one of the same stage or an earlier one.
  std::vector<std::optional<StagePlace>> of_node;
  // By parameter, the stages that compute with it, in order; of most it is one.
  std::map<std::string, std::vector<int64_t>> of_parameter;
};

// The layers of the model, up to their numbers ("model.layers.3"), in the order in which the forward pass runs them.
std::vector<std::string> layer_modules(const Graph& graph);

// The modules with which stages begin, so that all take about as long, by a roofline of rates that are the same
// everywhere. `graph`: of a micro-batch, one rank's or whole. UserError where there are fewer layers than stages.
std::vector<std::string> balanced_stages(const Graph& graph, int64_t stages);

// `begins`: by stage, the module with which it begins ("layers.8" or "model.layers.8"), empty of one that is all; what
// runs before the first belongs to it too. UserError for a name that no module has (with the nearest), and for modules
// in another order than they run in.
StagePlaces place_nodes(const Graph& graph, const std::vector<std::string>& begins);

}  // namespace stepc
