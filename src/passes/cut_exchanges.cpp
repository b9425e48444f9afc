#include "passes/cut_exchanges.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/shardings/splits.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

// Parts lie as ranks of a mesh of their own would: a dimension is (rows, parts, rows of a part).
Mesh mesh_of(int64_t parts) { return {{{"parts", parts}}}; }

bool reduces(const Node& node) {
  return collective_of(node) == Collective::kReduceScatter || collective_of(node) == Collective::kAllReduce;
}
bool gathers(const Node& node) { return collective_of(node) == Collective::kAllGather; }

// How a node is cut: whole operands have no split.
struct Cut {
  std::vector<std::optional<Split>> operands;
  Split result;
};
using Cuts = std::map<size_t, Cut>;  // by node

// Which nodes are cut, and how.
class Plan {
 public:
  Plan(const Graph& graph, int64_t parts, uint64_t least_bytes)
      : graph_(graph), mesh_(mesh_of(parts)), least_bytes_(least_bytes), readers_(graph.tensors.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (TensorId input : graph.nodes[n].inputs) readers_[input.index()].push_back(n);
  }

  Cuts run() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (reduces(graph_.nodes[n]) && may_be_cut(graph_.nodes[n])) cut_before(n);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (gathers(graph_.nodes[n]) && may_be_cut(graph_.nodes[n])) cut_behind(n);
    return std::move(cuts_);
  }

 private:
  [[nodiscard]] int64_t parts() const { return mesh_.axes[0].size; }

  [[nodiscard]] bool may_be_cut(const Node& node) const {
    if (node.inputs.size() != 1) return false;
    if (reduces(node) && node.attrs.get<std::string>("reduce") != name_of(ReduceOp::kSum)) return false;
    for (const int64_t axis : node.attrs.get<Shape>("axes"))
      if (graph_.mesh.axes[static_cast<size_t>(axis)].name != "tp") return false;
    const int64_t bytes = std::max(bytes_of(graph_.type(node.inputs[0])), bytes_of(graph_.type(node.outputs[0])));
    return static_cast<uint64_t>(bytes / parts()) >= std::max<uint64_t>(least_bytes_, 1);
  }

  // The splits of an exchange's operand on this rank by its leading dimensions; the last may be what a matmul sums.
  [[nodiscard]] std::vector<Split> candidates(const Node& node) const {
    const bool scatters = collective_of(node) == Collective::kReduceScatter;
    const Shape shape = graph_.shape(node.inputs[0]);
    std::vector<Split> out;
    for (size_t d = scatters ? 1 : 0; d + 1 < shape.size(); ++d)
      if (shape[d] % parts() == 0) out.push_back({d, {parts(), {0}}, shape[d] / parts()});
    return out;
  }
  [[nodiscard]] static Cut cut_of_exchange(const Node& node, const Split& operand) {
    Split result = operand;
    if (gathers(node)) ++result.at;
    if (collective_of(node) == Collective::kReduceScatter) --result.at;
    return {{operand}, result};
  }

  // Of a node whose rows do not meet: by a split of its operand or of its result.
  [[nodiscard]] std::optional<Cut> cut_of(const Node& node, std::optional<size_t> operand, const Split& split) const {
    if (node.outputs.size() != 1) return std::nullopt;
    if (!has(node, Trait::kElementwise) && !has(node, Trait::kView) && !has(node, Trait::kContraction))
      return std::nullopt;
    const ShardingRule rule = sharding_rule_of(graph_, node);
    if (rule.indexed || rule.once || rule.counts || rule.numbered) return std::nullopt;
    const TensorId tensor = operand ? node.inputs[*operand] : node.outputs[0];
    const FactorSplits found = onto_factors(sharding_of(tensor, split), graph_.shape(tensor),
                                            operand ? rule.operands[*operand] : rule.results[0], rule);
    if (!found.unfit.empty() || found.splits.size() != 1) return std::nullopt;
    const size_t factor = found.splits[0].at;
    if (rule.factors[factor].kind != Factor::Kind::kParallel || !has_factor(rule.results[0], factor))
      return std::nullopt;
    const auto split_by = [&](TensorId of, const ShardingRule::Dims& dims) -> std::optional<Split> {
      const std::vector<Split> splits =
          splits_of(from_factors(found.splits, graph_.shape(of), dims, rule, mesh_), graph_.shape(of));
      return splits.empty() ? std::nullopt : std::optional(splits[0]);
    };
    const std::optional<Split> result = split_by(node.outputs[0], rule.results[0]);
    if (!result) return std::nullopt;
    Cut cut = {{}, *result};
    for (size_t i = 0; i < node.inputs.size(); ++i) cut.operands.push_back(split_by(node.inputs[i], rule.operands[i]));
    return cut;
  }
  [[nodiscard]] Sharding sharding_of(TensorId tensor, const Split& split) const {
    return {pieces_of({split}, graph_.shape(tensor), mesh_), {}};
  }

  // The cut of what makes a tensor, of those that stand or `more`; nullptr: none.
  [[nodiscard]] const Cut* known(size_t node, const Cuts& more) const {
    for (const Cuts* cuts : {&cuts_, &more})
      if (const auto found = cuts->find(node); found != cuts->end()) return &found->second;
    return nullptr;
  }

  void cut_before(size_t reduction) {
    const Node& node = graph_.nodes[reduction];
    for (const Split& split : candidates(node)) {
      Cuts cuts;
      failed_.clear();
      if (!ends_matmul(node.inputs[0], split, false, cuts)) continue;
      cuts.emplace(reduction, cut_of_exchange(node, split));
      cuts_.merge(cuts);
      return;
    }
  }

  // Whether the tensor, in parts, is what matmuls make: then `cuts` has all that is cut for it. `is_behind`: a matmul
  // that is cut reads it, so a gather does as well, and less does not.
  bool ends_matmul(TensorId tensor, const Split& split, bool is_behind, Cuts& cuts) {
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid()) return false;
    const Node& node = graph_.nodes[producer.index()];
    if (reduces(node)) return false;
    if (const Cut* cut = known(producer.index(), cuts)) return cut->result == split;
    if (gathers(node)) return is_behind && cut_gather(producer.index(), split, cuts);
    if (failed_.contains({tensor, is_behind})) return false;
    const std::optional<Cut> cut = cut_of(node, std::nullopt, split);
    if (!cut) return false;
    const bool is_matmul = has(node, Trait::kContraction);
    bool is_reached = false;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (cut->operands[i]) is_reached |= ends_matmul(node.inputs[i], *cut->operands[i], is_behind || is_matmul, cuts);
    if (!is_reached && (is_behind || !is_matmul)) {
      failed_.emplace(tensor, is_behind);
      return false;
    }
    cuts.emplace(producer.index(), *cut);
    return true;
  }
  bool cut_gather(size_t n, const Split& result, Cuts& cuts) const {
    const Node& node = graph_.nodes[n];
    if (!may_be_cut(node)) return false;
    for (const Split& split : candidates(node)) {
      Cut cut = cut_of_exchange(node, split);
      if (cut.result != result) continue;
      cuts.emplace(n, std::move(cut));
      return true;
    }
    return false;
  }

  void cut_behind(size_t gather) {
    const Node& node = graph_.nodes[gather];
    const auto known = cuts_.find(gather);
    for (const Split& split : candidates(node)) {
      if (known != cuts_.end() && known->second.operands[0] != split) continue;
      Cuts cuts;
      const Cut cut = cut_of_exchange(node, split);
      if (!begins_matmul(node.outputs[0], cut.result, cuts)) continue;
      cuts.emplace(gather, cut);
      cuts_.merge(cuts);
      return;
    }
  }
  // Whether a matmul reads the tensor in parts; then `cuts` has what is cut on the way to it.
  bool begins_matmul(TensorId tensor, const Split& split, Cuts& cuts) {
    bool is_read = false;
    for (size_t reader : readers_[tensor.index()]) {
      const Node& node = graph_.nodes[reader];
      if (reduces(node) || gathers(node)) continue;
      const auto operand = static_cast<size_t>(std::ranges::find(node.inputs, tensor) - node.inputs.begin());
      if (const Cut* cut = known(reader, cuts)) {
        is_read |= cut->operands[operand] == split;
        continue;
      }
      const std::optional<Cut> cut = cut_of(node, operand, split);
      if (!cut) continue;
      if (!has(node, Trait::kContraction) && !begins_matmul(node.outputs[0], cut->result, cuts)) continue;
      cuts.emplace(reader, *cut);
      is_read = true;
    }
    return is_read;
  }

  const Graph& graph_;
  const Mesh mesh_;
  const uint64_t least_bytes_;
  std::vector<std::vector<size_t>> readers_;  // by tensor
  Cuts cuts_;
  std::set<std::pair<TensorId, bool>> failed_;  // where ends_matmul() has been for the present reduction
};

class Cutter {
 public:
  Cutter(const Graph& graph, int64_t parts, uint64_t least_bytes)
      : graph_(graph),
        parts_(parts),
        cuts_(Plan(graph, parts, least_bytes).run()),
        r_(graph),
        made_(graph.tensors.size()) {}

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      r_.at(node);
      if (const auto cut = cuts_.find(n); cut != cuts_.end()) {
        make_parts(node, cut->second);
        continue;
      }
      for (TensorId input : node.inputs) join(input);
      r_.keep(node);
    }
    for (const GraphOutput& output : graph_.outputs)
      if (output.tensor.valid()) join(output.tensor);
    return r_.finish();
  }

 private:
  struct Made {
    Split split;
    std::vector<TensorId> parts;
    bool is_joined = false;
  };

  void make_parts(const Node& node, const Cut& cut) {
    std::vector<std::vector<TensorId>> operands;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      operands.push_back(cut.operands[i] ? parts_of(node.inputs[i], *cut.operands[i])
                                         : std::vector<TensorId>(size(), whole(node.inputs[i])));
    Shape local = graph_.shape(node.outputs[0]);
    local[cut.result.at] /= parts_;
    Made& made = made_[node.outputs[0].index()].emplace(Made{cut.result, {}});
    for (size_t p = 0; p < size(); ++p) {
      std::vector<TensorId> inputs;
      std::vector<Shape> shapes;
      for (const std::vector<TensorId>& operand : operands) {
        inputs.push_back(operand[p]);
        shapes.push_back(b().shape(operand[p]));
      }
      made.parts.push_back(b().add(node.op, inputs, attrs_of(node, shapes, local)));
    }
  }
  [[nodiscard]] Attrs attrs_of(const Node& node, const std::vector<Shape>& operands, const Shape& result) const {
    const OpDef& op = op_def(node.op);
    if (op.local_attrs != nullptr) return op.local_attrs(call_of(graph_, node), operands, {result});
    Attrs attrs = node.attrs;
    if (op.has(Trait::kShapeAttr)) attrs.set("shape", result);
    return attrs;
  }

  TensorId whole(TensorId old) {
    join(old);
    return r_[old];
  }
  void join(TensorId old) {
    std::optional<Made>& made = made_[old.index()];
    if (!made || made->is_joined) return;
    const Shape shape = graph_.shape(old);
    const auto [open, dim] = opened(shape, made->split, 1);
    std::vector<TensorId> parts;
    for (TensorId part : made->parts) parts.push_back(b().reshape(part, open));
    r_.replace(old, b().reshape(b().add("concat", parts, {{"dim", static_cast<int64_t>(dim)}}), shape));
    made->is_joined = true;
  }

  std::vector<TensorId> parts_of(TensorId old, const Split& split) {
    if (const std::optional<Made>& made = made_[old.index()]; made && made->split == split) return made->parts;
    std::vector<TensorId>& parts = sliced_[{old, split.at, split.inner}];
    if (!parts.empty()) return parts;
    const Shape shape = graph_.shape(old);
    Shape local = shape;
    local[split.at] /= parts_;
    const auto [open, dim] = opened(shape, split, parts_);
    const TensorId all = b().reshape(whole(old), open);
    Shape begin(open.size(), 0), sizes = open;
    sizes[dim] /= parts_;
    for (int64_t p = 0; p < parts_; ++p) {
      begin[dim] = p * sizes[dim];
      parts.push_back(b().reshape(b().slice(all, begin, sizes, Shape(open.size(), 1)), local));
    }
    return parts;
  }
  // A tensor's shape with `parts` of its parts, so that these lie along a dimension: that one.
  [[nodiscard]] std::pair<Shape, size_t> opened(Shape shape, const Split& split, int64_t parts) const {
    const int64_t outer = shape[split.at] / (parts_ * split.inner);
    shape[split.at] = parts * split.inner;
    if (outer == 1) return {shape, split.at};
    shape.insert(shape.begin() + static_cast<ptrdiff_t>(split.at), outer);
    return {shape, split.at + 1};
  }
  [[nodiscard]] size_t size() const { return static_cast<size_t>(parts_); }
  GraphBuilder& b() { return r_.b(); }

  const Graph& graph_;
  const int64_t parts_;
  const Cuts cuts_;
  Rewriter r_;
  std::vector<std::optional<Made>> made_;  // by old tensor
  std::map<std::tuple<TensorId, size_t, int64_t>, std::vector<TensorId>> sliced_;
};

}  // namespace

Graph cut_exchanges(const Graph& graph, int64_t parts, uint64_t least_bytes) {
  return parts == 1 ? graph : Cutter(graph, parts, least_bytes).run();
}

}  // namespace stepc
