#include "passes/stages/place_nodes.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "cost/target.h"

namespace stepc {

namespace {

// What a tensor follows from.
struct Origins {
  bool batch = false, parameters = false;
  bool is_placed = false;  // from both: of one stage
};

Origins origins_of(const GraphInput& input) {
  switch (input.kind) {
    case InputKind::kBatch:
      return {true, false, false};
    case InputKind::kParameter:
      return {false, true, false};
    case InputKind::kGradient:
      return {false, false, true};
    default:
      return {};
  }
}

std::vector<Origins> origins_of(const Graph& graph) {
  std::vector<Origins> all(graph.tensors.size());
  for (const GraphInput& input : graph.inputs) all[input.tensor.index()] = origins_of(input);
  // What is held and added to has a place; what is held from a round of micro-batches before is as parameters are.
  std::set<uint32_t> updated;
  for (const GraphOutput& output : graph.outputs)
    if (output.kind == GraphOutput::Kind::kUpdate) updated.insert(output.input);
  for (uint32_t i = 0; i < graph.inputs.size(); ++i)
    if (graph.inputs[i].kind == InputKind::kGradient && !updated.contains(i))
      all[graph.inputs[i].tensor.index()] = {false, true, false};
  for (const Node& node : graph.nodes) {
    Origins sum;
    for (TensorId input : node.inputs) {
      const Origins& one = all[input.index()];
      sum.batch |= one.batch;
      sum.parameters |= one.parameters;
      sum.is_placed |= one.is_placed;
    }
    sum.is_placed |= sum.batch && sum.parameters;
    for (TensorId output : node.outputs) all[output.index()] = sum;
  }
  return all;
}

bool is_placed(const Node& node, const std::vector<Origins>& origins) {
  return !node.outputs.empty() && origins[node.outputs[0].index()].is_placed;
}

// The parameters that tensors without a place follow from, filled in the order of nodes.
class Parameters {
 public:
  explicit Parameters(const Graph& graph) : of_tensor_(graph.tensors.size()) {
    for (const GraphInput& input : graph.inputs)
      if (input.kind == InputKind::kParameter) of_tensor_[input.tensor.index()] = {input.key};
  }
  [[nodiscard]] std::set<std::string> behind(const Node& node) const {
    std::set<std::string> from;
    for (TensorId input : node.inputs) from.insert(of_tensor_[input.index()].begin(), of_tensor_[input.index()].end());
    return from;
  }
  void follow(const Node& node, const std::set<std::string>& from) {
    for (TensorId output : node.outputs) of_tensor_[output.index()] = from;
  }

 private:
  std::vector<std::set<std::string>> of_tensor_;
};

// Whether a module is `name` or stands in it; `name` may leave out what is in front.
bool is_within(std::string_view module, std::string_view name) {
  for (size_t at = module.find(name); at != std::string_view::npos; at = module.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || module[at - 1] == '.') && (end == module.size() || module[end] == '.')) return true;
  }
  return false;
}

// The layer that a module stands in, up to its number: "model.layers.3"; empty: in none.
std::string layer_of(const std::string& module) {
  std::string layer;
  for (const std::string& part : split(module, '.')) {
    layer += layer.empty() ? part : "." + part;
    if (!part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) return layer;
  }
  return {};
}

// Of placed forward nodes, by module, where the first one stands.
std::map<std::string, size_t> first_nodes(const Graph& graph, const std::vector<Origins>& origins) {
  std::map<std::string, size_t> first;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Source& source = graph.nodes[n].source;
    if (source.phase == Phase::kForward && !source.module.empty() && is_placed(graph.nodes[n], origins))
      first.emplace(source.module, n);
  }
  return first;
}

// By stage, the node with which it begins.
std::vector<size_t> beginnings(const std::map<std::string, size_t>& first, const std::vector<std::string>& begins) {
  std::set<std::string> known;
  for (const auto& [module, node] : first)
    for (size_t end = module.find('.'); true; end = module.find('.', end + 1)) {
      const std::string whole = module.substr(0, end);
      known.insert(whole);
      for (size_t dot = whole.find('.'); dot != std::string::npos; dot = whole.find('.', dot + 1))
        known.insert(whole.substr(dot + 1));
      if (end == std::string::npos) break;
    }
  std::vector<size_t> nodes;
  for (size_t s = 0; s < begins.size(); ++s) {
    std::optional<size_t> node;
    if (begins[s].empty()) node = 0;
    for (const auto& [module, at] : first)
      if (is_within(module, begins[s])) node = std::min(node.value_or(at), at);
    if (!node) {
      const auto near = nearest(begins[s], {known.begin(), known.end()});
      user_error("a stage begins with '{}', and the model has no such module{}", begins[s],
                 near            ? str("; did you mean '{}'?", *near)
                 : known.empty() ? ""
                                 : str(", as '{}' is one", *known.begin()));
    }
    USER_CHECK(s == 0 || *node > nodes.back(), "a stage begins with '{}', which does not run after '{}', where the {}",
               begins[s], begins[s - 1], "stage before it begins");
    nodes.push_back(*node);
  }
  return nodes;
}

// The first layer of each stage, where the longest stage takes as little time as possible.
std::vector<size_t> even_stages(const std::vector<double>& costs, size_t stages) {
  const size_t n = costs.size();
  std::vector<double> until(n + 1);
  for (size_t i = 0; i < n; ++i) until[i + 1] = until[i] + costs[i];
  // Of the first i layers in s stages: the longest stage and the sum of squares, and where the last stage begins.
  struct Best {
    double longest = std::numeric_limits<double>::infinity(), squares = 0;
    size_t begin = 0;
  };
  std::vector<std::vector<Best>> best(stages + 1, std::vector<Best>(n + 1));
  best[0][0] = {0, 0, 0};
  for (size_t s = 1; s <= stages; ++s)
    for (size_t i = s; i <= n; ++i)
      for (size_t begin = s - 1; begin < i; ++begin) {
        const Best& front = best[s - 1][begin];
        const double cost = until[i] - until[begin];
        const Best one{std::max(front.longest, cost), front.squares + cost * cost, begin};
        Best& now = best[s][i];
        if (std::pair(one.longest, one.squares) < std::pair(now.longest, now.squares)) now = one;
      }
  std::vector<size_t> begins(stages);
  for (size_t s = stages, i = n; s > 0; --s) begins[s - 1] = i = best[s][i].begin;
  return begins;
}

}  // namespace

std::vector<std::string> layer_modules(const Graph& graph) {
  const std::vector<Origins> origins = origins_of(graph);
  std::vector<std::string> layers;
  for (const Node& node : graph.nodes) {
    if (node.source.phase != Phase::kForward || !is_placed(node, origins)) continue;
    const std::string layer = layer_of(node.source.module);
    if (!layer.empty() && std::ranges::find(layers, layer) == layers.end()) layers.push_back(layer);
  }
  return layers;
}

std::vector<std::string> balanced_stages(const Graph& graph, int64_t stages) {
  if (stages == 1) return {std::string()};
  const std::vector<Origins> origins = origins_of(graph);
  const Target target;  // the same on every machine
  const std::vector<std::string> layers = layer_modules(graph);
  std::vector<double> costs(std::max<size_t>(layers.size(), 1));
  std::map<std::string, size_t> layer_at;  // by module; outside of layers: the last layer before it, or the first
  // What adds to a held gradient stands where its parameter is used first, whichever module it is in; what adds to a
  // held sum that is no parameter's stands where its module is.
  std::map<std::string, size_t> layer_of_parameter;
  Parameters parameters(graph);
  std::map<TensorId, std::string> held_for;
  for (const GraphInput& input : graph.inputs)
    if (input.kind == InputKind::kGradient) held_for[input.tensor] = input.key;
  size_t last = 0;
  for (const Node& node : graph.nodes) {
    const std::set<std::string> from = parameters.behind(node);
    if (!is_placed(node, origins)) {
      parameters.follow(node, from);
      continue;
    }
    const std::string& module = node.source.module;
    if (node.source.phase == Phase::kForward) {
      const auto layer = std::ranges::find(layers, layer_of(module));
      if (layer != layers.end()) last = std::max(last, static_cast<size_t>(layer - layers.begin()));
      const size_t at = layer_at.try_emplace(module, last).first->second;
      for (const std::string& key : from) layer_of_parameter.try_emplace(key, at);
    }
    const auto held = std::ranges::find_if(node.inputs, [&](TensorId input) { return held_for.contains(input); });
    const auto holder =
        held == node.inputs.end() ? layer_of_parameter.end() : layer_of_parameter.find(held_for.at(*held));
    if (holder != layer_of_parameter.end()) {
      costs[holder->second] += seconds_of(graph, node, target);
      continue;
    }
    const auto at = layer_at.find(module);
    if (at != layer_at.end()) costs[at->second] += seconds_of(graph, node, target);
  }
  USER_CHECK(std::ssize(layers) >= stages,
             "{} stages, and the model has {} {}: each stage needs one, so there can be {}", stages, layers.size(),
             layers.size() == 1 ? "layer" : "layers",
             layers.empty() ? std::string("none") : str("at most {}", layers.size()));
  std::vector<std::string> begins;
  for (const size_t layer : even_stages(costs, static_cast<size_t>(stages))) begins.push_back(layers[layer]);
  return begins;
}

StagePlaces place_nodes(const Graph& graph, const std::vector<std::string>& begins) {
  const std::vector<Origins> origins = origins_of(graph);
  const std::map<std::string, size_t> first = first_nodes(graph, origins);
  const std::vector<size_t> beginning = beginnings(first, begins);
  const auto stage_of_module = [&](const std::string& module) {
    const auto found = first.find(module);
    if (found == first.end()) return int64_t{0};
    const auto behind = std::ranges::upper_bound(beginning, found->second);
    return std::max<int64_t>(behind - beginning.begin() - 1, 0);
  };

  StagePlaces places;
  places.stages = std::ssize(begins);
  places.of_node.resize(graph.nodes.size());
  std::vector<std::optional<StagePlace>> of_tensor(graph.tensors.size());
  std::map<std::string, std::set<int64_t>> of_module;  // the stages of its forward nodes
  Parameters parameters(graph);
  std::map<std::string, std::set<int64_t>> of_parameter;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const std::set<std::string> from = parameters.behind(node);
    if (!is_placed(node, origins)) {
      parameters.follow(node, from);
      continue;
    }
    StagePlace place{node.source.phase == Phase::kBackward, 0};
    std::optional<int64_t> latest, earliest_backward;
    for (TensorId input : node.inputs) {
      const auto& of = of_tensor[input.index()];
      if (!of) continue;
      place.is_backward |= of->is_backward;
      latest = std::max(latest.value_or(of->stage), of->stage);
      if (of->is_backward) earliest_backward = std::min(earliest_backward.value_or(of->stage), of->stage);
    }
    if (!place.is_backward) {
      place.stage = std::max(latest.value_or(0), stage_of_module(node.source.module));
      of_module[node.source.module].insert(place.stage);
    } else {
      place.stage = earliest_backward.value_or(places.stages - 1);
      // A module that runs in several stages, as a tied embedding: the latest that there can be.
      if (const auto known = of_module.find(node.source.module);
          known != of_module.end() && !node.source.module.empty())
        if (auto behind = known->second.upper_bound(place.stage); behind != known->second.begin())
          place.stage = *std::prev(behind);
    }
    places.of_node[n] = place;
    for (TensorId output : node.outputs) of_tensor[output.index()] = place;
    for (const std::string& key : from) of_parameter[key].insert(place.stage);
  }
  for (const auto& [key, stages] : of_parameter) places.of_parameter[key] = {stages.begin(), stages.end()};
  return places;
}

}  // namespace stepc
