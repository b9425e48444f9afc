#include "loops/lower/loop_space.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "loops/lower/moved_index.h"
#include "ops/op_def.h"

namespace stepc {

std::vector<uint32_t> loops_of(const IndexMap& map) {
  std::set<uint32_t> loops;
  for (const Affine& affine : map)
    for (const AffineTerm& term : affine.terms) loops.insert(term.loop);
  return {loops.begin(), loops.end()};
}

const IndexMap& LoopSpace::map_of(TensorId id) const {
  if (!maps[id.index()]) throw NoLoops(str("%{} has no loops in common with the largest tensor", id));
  return *maps[id.index()];
}

namespace {

class SpaceFinder {
 public:
  SpaceFinder(const Graph& graph, TensorId domain, const LoopFactors& factors) : graph_(graph), domain_(domain) {
    space_.maps.resize(graph.tensors.size());
    IndexMap map;
    for (const std::vector<int64_t>& dimension : factors) {
      Affine index;
      for (int64_t extent : dimension) {
        index = index * extent;
        index.terms.push_back({static_cast<uint32_t>(space_.extents.size()), 1});
        space_.extents.push_back(extent);
      }
      map.push_back(std::move(index));
    }
    space_.maps[domain.index()] = std::move(map);
  }

  LoopSpace find(Together together) {
    follow();
    if (together == Together::kConnected) return std::move(space_);
    for (const GraphInput& input : graph_.inputs) {
      if (map_of(input.tensor) || graph_.shape(input.tensor) != graph_.shape(domain_)) continue;
      set(input.tensor, *map_of(domain_));
      follow();
    }
    return std::move(space_);
  }

 private:
  void follow() {
    do {
      changed_ = false;
      for (const Node& node : graph_.nodes) follow_down(node);
      for (size_t n = graph_.nodes.size(); n-- > 0;) follow_up(graph_.nodes[n]);
    } while (changed_);
  }
  std::optional<IndexMap>& map_of(TensorId id) { return space_.maps[id.index()]; }
  void set(TensorId id, IndexMap map) {
    if (map_of(id)) return;
    map_of(id) = std::move(map);
    changed_ = true;
  }
  void set_moved(TensorId id, MovedIndex moved) {
    if (moved.split) throw SplitNeeded{*moved.split};
    if (moved.map && moved.onto) set(id, std::move(*moved.map));
  }

  // From operands to the result.
  void follow_down(const Node& node) {
    if (node.outputs.size() != 1 || map_of(node.outputs[0])) return;
    const TensorId out = node.outputs[0];
    const OpDef& op = op_def(node.op);
    for (TensorId in : node.inputs) {
      if (!map_of(in)) continue;
      const IndexMap& map = *map_of(in);
      if (moves_elements(node.op)) {
        if (node.inputs.size() == 1) set_moved(out, result_index(graph_, node, map, space_.extents));
      } else if (op.has(Trait::kElementwise)) {
        if (element_count(graph_.shape(in)) != element_count(graph_.shape(out))) continue;
        IndexMap wide(graph_.shape(out).size());
        for (size_t d = 0; d < map.size(); ++d) wide[wide.size() - map.size() + d] = map[d];
        set(out, std::move(wide));
      } else if (op.has(Trait::kReduction)) {
        set(out, reduced(node, map));
      }
      if (map_of(out)) return;
    }
  }
  IndexMap reduced(const Node& node, const IndexMap& map) const {
    const Shape& dims = node.attrs.get<Shape>("dims");
    IndexMap out;
    for (size_t d = 0; d < map.size(); ++d) {
      if (std::ranges::find(dims, static_cast<int64_t>(d)) == dims.end())
        out.push_back(map[d]);
      else if (node.attrs.get<bool>("keepdim"))
        out.emplace_back();
    }
    return out;
  }

  // From the result to operands.
  void follow_up(const Node& node) {
    if (node.outputs.size() != 1 || !map_of(node.outputs[0])) return;
    const IndexMap map = *map_of(node.outputs[0]);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const TensorId in = node.inputs[k];
      if (map_of(in)) continue;
      if (moves_elements(node.op))
        set_moved(in, operand_index(graph_, node, k, map, space_.extents));
      else if (op_def(node.op).has(Trait::kElementwise))
        set(in, broadcast_index(map, graph_.shape(in)));
    }
  }

  const Graph& graph_;
  TensorId domain_;
  LoopSpace space_;
  bool changed_ = false;
};

// The largest of what is returned or reduced; reductions win over what comes after them.
TensorId domain_of(const Graph& graph) {
  TensorId domain;
  int64_t most = 0;
  const auto offer = [&](TensorId id) {
    const int64_t count = element_count(graph.shape(id));
    if (count <= most) return;
    most = count;
    domain = id;
  };
  for (const Node& node : graph.nodes)
    if (op_def(node.op).has(Trait::kReduction)) offer(node.inputs[0]);
  for (const GraphOutput& output : graph.outputs) offer(output.tensor);
  return domain;
}

}  // namespace

LoopFactors domain_factors(const Graph& group) {
  LoopFactors factors;
  const TensorId domain = domain_of(group);
  if (!domain.valid()) return factors;
  for (int64_t size : group.shape(domain))
    factors.push_back(size == 1 ? std::vector<int64_t>() : std::vector<int64_t>{size});
  return factors;
}

void split_loop(LoopFactors& factors, const LoopSplit& split) {
  uint32_t loop = 0;
  for (std::vector<int64_t>& dimension : factors)
    for (size_t i = 0; i < dimension.size(); ++i) {
      if (loop++ != split.loop) continue;
      dimension[i] /= split.inner;
      dimension.insert(dimension.begin() + static_cast<ptrdiff_t>(i) + 1, split.inner);
      return;
    }
  INTERNAL_CHECK(false, "there is no loop {} to split", split.loop);
}

LoopSpace find_loop_space(const Graph& group, const LoopFactors& factors, Together together) {
  const TensorId domain = domain_of(group);
  if (domain.valid()) return SpaceFinder(group, domain, factors).find(together);
  LoopSpace nothing;
  nothing.maps.resize(group.tensors.size());
  return nothing;
}

}  // namespace stepc
