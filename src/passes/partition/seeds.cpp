#include "passes/partition/seeds.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/chains.h"
#include "passes/partition/means_by_rank.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

namespace {

// All elements are one number. Many parameters may share such a tensor, as the zeros that gradients become.
bool is_one_number(const Graph& graph, TensorId id) {
  while (true) {
    if (element_count(graph.shape(id)) < 2) return true;
    const Node* producer = graph.producer(id);
    if (producer == nullptr) return false;
    if (has(*producer, Trait::kConstant)) return true;
    if (!has(*producer, Trait::kView)) return false;
    id = producer->inputs[0];
  }
}

// Tensors that are computed from each other element by element, at one shape: a parameter, its gradient from the point
// where that is whole, its optimizer state and their new values are such a group.
class Groups {
 public:
  explicit Groups(const Graph& graph) : parent_(graph.tensors.size()) {
    std::iota(parent_.begin(), parent_.end(), uint32_t{0});
    for (const Node& node : graph.nodes) {
      if (!has(node, Trait::kElementwise)) continue;
      const Shape& shape = graph.shape(node.outputs[0]);
      if (element_count(shape) < 2) continue;
      for (TensorId input : node.inputs)
        if (graph.shape(input) == shape && !is_one_number(graph, input)) join(input.value, node.outputs[0].value);
    }
    join_held_gradients(graph);
    for (const GraphOutput& output : graph.outputs)
      if (output.kind == GraphOutput::Kind::kUpdate && !is_one_number(graph, output.tensor))
        join(graph.inputs[output.input].tensor.value, output.tensor.value);
  }
  uint32_t of(TensorId id) { return root(id.value); }

 private:
  // A micro-batch adds to gradients and does not touch what its parameters become.
  void join_held_gradients(const Graph& graph) {
    std::map<std::string_view, TensorId> parameters;
    for (const GraphInput& input : graph.inputs)
      if (input.kind == InputKind::kParameter) parameters.emplace(input.key, input.tensor);
    for (const GraphInput& input : graph.inputs) {
      const auto parameter = parameters.find(input.key);
      if (input.kind == InputKind::kGradient && parameter != parameters.end() &&
          graph.shape(parameter->second) == graph.shape(input.tensor))
        join(parameter->second.value, input.tensor.value);
    }
  }
  uint32_t root(uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(uint32_t a, uint32_t b) { parent_[std::max(root(a), root(b))] = std::min(root(a), root(b)); }
  std::vector<uint32_t> parent_;
};

// `axes` added to the first dimension that they divide, behind what is split there already, else to the largest part;
// unchanged where no part has an element for every rank.
Sharding split_further(const Sharding& sharding, const Shape& shape, const std::vector<Axis>& axes, const Mesh& mesh) {
  struct Place {
    size_t dim = 0;
    int64_t extent = 0, inner = 1;
  };
  std::optional<Place> best;
  const int64_t ranks = mesh.size(axes);
  const auto is_better = [&](const Place& a, const Place& b) {
    const bool divides_a = a.extent % ranks == 0, divides_b = b.extent % ranks == 0;
    return divides_a != divides_b ? divides_a : !divides_a && a.extent > b.extent;
  };
  for (size_t d = 0; d < shape.size(); ++d) {
    const Pieces whole = {{shape[d], {}}};
    int64_t inner = shape[d];
    for (const Piece& piece : sharding.dims[d].empty() ? whole : sharding.dims[d]) {
      inner /= std::max<int64_t>(piece.extent, 1);
      const Place place{d, piece.extent, inner};
      if (piece.axes.empty() && piece.extent >= ranks && (!best || is_better(place, *best))) best = place;
    }
  }
  if (!best) return sharding;
  std::vector<Split> splits = splits_of(sharding, shape);
  splits.push_back({best->dim, {best->extent, axes}, best->inner});
  return {pieces_of(splits, shape, mesh), sharding.partial};
}

// How many rows the batch has: as many as its first tensor.
int64_t batch_rows(const Graph& graph) {
  for (const GraphInput& input : graph.inputs)
    if (input.kind == InputKind::kBatch && !graph.shape(input.tensor).empty()) return graph.shape(input.tensor)[0];
  return 0;
}

// The rows of a batch tensor split along `axes`: those of each micro-batch, where the step cuts it into several.
Pieces batch_pieces(const Chains& chains, TensorId batch, int64_t rows, const std::vector<Axis>& axes,
                    const Mesh& mesh) {
  const std::vector<Chains::Part> parts = chains.parts_of(batch, 0);
  auto chosen = std::ranges::find_if(
      parts, [&](const Chains::Part& part) { return part.splits && part.extent % mesh.size(axes) == 0; });
  if (chosen == parts.end())
    chosen = std::ranges::find_if(parts, [](const Chains::Part& part) { return part.splits && part.extent > 1; });
  if (chosen == parts.end()) return canonical({{rows, axes}}, mesh);
  Pieces pieces;
  for (auto part = parts.begin(); part != parts.end(); ++part)
    pieces.push_back({part->extent, part == chosen ? axes : std::vector<Axis>()});
  return canonical(pieces, mesh);
}

// What a pattern that matches nothing may have meant: as many names as stand behind its last '*', at the end of a key.
std::optional<std::string> nearest_pattern(const std::string& pattern, const std::vector<std::string>& keys) {
  if (auto whole = nearest(pattern, keys)) return whole;
  const size_t star = pattern.rfind('*');
  const std::string front = star == std::string::npos ? "*" : pattern.substr(0, star + 1);
  const std::string end = star == std::string::npos ? "." + pattern : pattern.substr(star + 1);
  std::vector<std::string> ends;
  for (const std::string& key : keys) {
    size_t from = key.size();
    for (auto names = std::ranges::count(end, '.'); names > 0 && from != std::string::npos && from > 0; --names)
      from = key.rfind('.', from - 1);
    if (from != std::string::npos) ends.push_back(key.substr(from));
  }
  const auto near = nearest(end, ends);
  return near ? std::optional(front + *near) : std::nullopt;
}

void apply_rules(const Graph& graph, const Strategy& strategy, std::vector<std::optional<Sharding>>& base) {
  std::vector<std::string> keys;
  for (const GraphInput& input : graph.inputs)
    if (input.kind == InputKind::kParameter) keys.push_back(input.key);
  for (const ShardRule& rule : strategy.rules) {
    bool found = false;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const GraphInput& input = graph.inputs[i];
      if (input.kind != InputKind::kParameter || !matches(input.key, rule.pattern)) continue;
      found = true;
      const Shape& shape = graph.shape(input.tensor);
      std::vector<Split> splits;
      for (const auto& [dim, name] : rule.dims) {
        USER_CHECK(dim < shape.size(), "the rule '{}' splits dimension {} of '{}', which has {} dimensions, from 0 on",
                   rule.pattern, dim, input.key, shape.size());
        const Axis axis = *strategy.mesh.find(name);
        USER_CHECK(shape[dim] >= strategy.mesh.size(axis),
                   "the rule '{}' splits dimension {} of '{}' over {} ranks along '{}', and it has {} elements",
                   rule.pattern, dim, input.key, strategy.mesh.size(axis), name, shape[dim]);
        splits.push_back({dim, {shape[dim], {axis}}, 1});
      }
      base[i] = Sharding{pieces_of(splits, shape, strategy.mesh), {}};
    }
    const auto near = nearest_pattern(rule.pattern, keys);
    USER_CHECK(found, "the rule '{}' matches no parameter{}", rule.pattern,
               near           ? str("; did you mean '{}'?", *near)
               : keys.empty() ? ""
                              : str(", as '{}' would", keys.front()));
  }
}

// A held gradient is what each rank's own tokens have added, until the update asks for the whole.
void hold_as_sum(Sharding& sharding, const Mesh& mesh) {
  for (std::string_view name : {"dp_replicate", "dp_shard", "cp"})
    if (const auto axis = mesh.find(name); axis && !sharding.splits(*axis)) sharding.set_partial(*axis, ReduceOp::kSum);
}

bool belongs_to_parameter(InputKind kind) {
  return kind == InputKind::kOptimizerState || kind == InputKind::kGradient || kind == InputKind::kCaptured;
}

}  // namespace

bool matches(std::string_view key, std::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return key == pattern;
  if (!key.starts_with(pattern.substr(0, star))) return false;
  for (size_t skipped = star; skipped <= key.size(); ++skipped)
    if (matches(key.substr(skipped), pattern.substr(star + 1))) return true;
  return false;
}

Seeds seeds_of(const Graph& graph, const Strategy& strategy,
               const std::vector<std::optional<Sharding>>& tensor_parallel) {
  const Mesh& mesh = strategy.mesh;
  const std::vector<Axis> shard = state_axes(mesh);
  const std::vector<Axis> rows = strategy.means_by_rank ? std::vector<Axis>() : data_axes(mesh);

  Seeds seeds;
  seeds.wanted.resize(graph.tensors.size());
  std::vector<std::optional<Sharding>> base = tensor_parallel;
  base.resize(graph.inputs.size());
  apply_rules(graph, strategy, base);
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    if (graph.inputs[i].kind == InputKind::kParameter)
      if (const auto known = strategy.known.find(graph.inputs[i].key); known != strategy.known.end())
        base[i] = known->second;

  // Of each group of a parameter: how it lies itself, and how what is kept beside it does.
  struct Lies {
    Sharding parameter, state;
    bool has_state = false;
  };
  Groups groups(graph);
  std::map<uint32_t, Lies> of_group;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    const Shape& shape = graph.shape(input.tensor);
    if (input.kind != InputKind::kParameter) continue;
    const Sharding split = base[i].value_or(Sharding::whole(shape.size()));
    std::vector<Axis> free = shard;
    std::erase_if(free, [&](Axis axis) { return split.splits(axis); });
    const bool has_shards = !free.empty() && strategy.zero > 0;
    const Sharding sharded = has_shards ? split_further(split, shape, free, mesh) : split;
    of_group.try_emplace(groups.of(input.tensor), Lies{strategy.zero >= 3 ? sharded : split, sharded});
  }
  for (const GraphInput& input : graph.inputs)
    if (belongs_to_parameter(input.kind))
      if (const auto found = of_group.find(groups.of(input.tensor)); found != of_group.end())
        found->second.has_state |= input.kind != InputKind::kGradient;

  const int64_t batch = batch_rows(graph);
  const Chains chains(graph);
  for (const GraphInput& input : graph.inputs) {
    const Shape& shape = graph.shape(input.tensor);
    Seed seed{Sharding::whole(shape.size()), Origin::kNone};
    const auto lies = of_group.find(groups.of(input.tensor));
    if (input.kind == InputKind::kBatch) {
      seed.origin = Origin::kBatch;
      if (!shape.empty() && shape[0] == batch && batch > 0 && !rows.empty())
        seed.sharding.dims[0] = batch_pieces(chains, input.tensor, batch, rows, mesh);
    } else if (lies != of_group.end() && lies->second.parameter.dims.size() == shape.size()) {
      if (input.kind == InputKind::kParameter) seed = {lies->second.parameter, Origin::kParameter};
      if (belongs_to_parameter(input.kind)) {
        const bool is_held = input.kind == InputKind::kGradient;
        seed = {is_held && strategy.zero < 2 ? lies->second.parameter : lies->second.state, Origin::kState};
        if (is_held) hold_as_sum(seed.sharding, mesh);
      }
    }
    seeds.inputs.push_back(std::move(seed));
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const auto lies = of_group.find(groups.of(TensorId(t)));
    if (lies == of_group.end()) continue;
    seeds.wanted[t] = lies->second.has_state ? lies->second.state : lies->second.parameter;
  }
  return seeds;
}

Seeds no_seeds(const Graph& graph) {
  Seeds seeds;
  seeds.wanted.resize(graph.tensors.size());
  for (const GraphInput& input : graph.inputs)
    seeds.inputs.push_back({Sharding::whole(graph.shape(input.tensor).size()), Origin::kNone});
  return seeds;
}

}  // namespace stepc
