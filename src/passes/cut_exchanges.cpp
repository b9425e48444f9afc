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
// By reduction: gathers of what follows from it row by row. A part of one can leave when that of the other has come.
using Links = std::multimap<size_t, size_t>;

// Which nodes are cut, and how.
class ChosenCuts {
 public:
  ChosenCuts(const Graph& graph, int64_t parts, uint64_t least_bytes)
      : graph_(graph), mesh_(mesh_of(parts)), least_bytes_(least_bytes), readers_(graph.tensors.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (TensorId input : graph.nodes[n].inputs) readers_[input.index()].push_back(n);
  }

  std::pair<Cuts, Links> run() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (reduces(graph_.nodes[n]) && may_be_cut(graph_.nodes[n])) cut_before(n);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (gathers(graph_.nodes[n]) && may_be_cut(graph_.nodes[n])) cut_behind(n);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (const auto cut = cuts_.find(n); cut != cuts_.end() && gathers(graph_.nodes[n])) link(n, cut->second);
    return {std::move(cuts_), std::move(links_)};
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
    constexpr Trait kByRows[] = {Trait::kElementwise, Trait::kView, Trait::kContraction, Trait::kReduction};
    if (std::ranges::none_of(kByRows, [&](Trait trait) { return has(node, trait); })) return std::nullopt;
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
      if (!ends_matmul(node.inputs[0], split, node.source.phase, false, cuts)) continue;
      cuts.emplace(reduction, cut_of_exchange(node, split));
      cuts_.merge(cuts);
      return;
    }
  }

  // Whether the tensor, in parts, is what matmuls make: then `cuts` has all that is cut for it. `phase`: its reader's.
  // `is_behind`: a matmul that is cut reads it, so a gather does as well, and less does not.
  bool ends_matmul(TensorId tensor, const Split& split, Phase phase, bool is_behind, Cuts& cuts) {
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid()) return false;
    const Node& node = graph_.nodes[producer.index()];
    if (reduces(node)) return false;
    if (const Cut* cut = known(producer.index(), cuts)) return cut->result == split;
    if (gathers(node)) return is_behind && cut_gather(producer.index(), split, cuts);
    // From a backward pass on into the forward pass lies a loss, whose logits are more than any exchange.
    if (node.source.phase != phase) return false;
    if (failed_.contains({tensor, is_behind})) return false;
    const std::optional<Cut> cut = cut_of(node, std::nullopt, split);
    if (!cut) return false;
    // Sums of rows are sent in no time, as those of a loss over its logits.
    if (!is_behind && has(node, Trait::kReduction)) return false;
    const bool is_matmul = has(node, Trait::kContraction);
    bool is_reached = false;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (cut->operands[i])
        is_reached |= ends_matmul(node.inputs[i], *cut->operands[i], node.source.phase, is_behind || is_matmul, cuts);
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
      const bool is_matmul = has(node, Trait::kContraction);
      // Its parts are put together, which takes longer than the gather where they are larger, as logits are.
      if (is_matmul && bytes_of(graph_.type(node.outputs[0])) > bytes_of(graph_.type(tensor))) continue;
      if (!is_matmul && !begins_matmul(node.outputs[0], cut->result, cuts)) continue;
      cuts.emplace(reader, *cut);
      is_read = true;
    }
    return is_read;
  }

  // What lies between a reduction in parts and the gather, as the residual stream and a norm of its rows, is in parts.
  void link(size_t gather, const Cut& cut) {
    Cuts cuts;
    failed_.clear();
    const std::optional<size_t> reduction = reduction_before(graph_.nodes[gather].inputs[0], *cut.operands[0], cuts);
    if (reduction) links_.emplace(*reduction, gather);
    cuts_.merge(cuts);
  }
  // The last one from which the tensor follows; then `cuts` has what is cut on the way.
  std::optional<size_t> reduction_before(TensorId tensor, const Split& split, Cuts& cuts) {
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid() || failed_.contains({tensor, false})) return std::nullopt;
    const size_t n = producer.index();
    const Node& node = graph_.nodes[n];
    if (const Cut* cut = known(n, cuts)) {
      if (cut->result != split) return std::nullopt;
      if (reduces(node)) return n;
      const auto before = behind_.find(n);
      return before == behind_.end() ? std::nullopt : std::optional(before->second);
    }
    std::optional<size_t> last;
    if (const std::optional<Cut> cut = cut_of(node, std::nullopt, split)) {
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (cut->operands[i]) last = std::max(last, reduction_before(node.inputs[i], *cut->operands[i], cuts));
      if (last) {
        cuts.emplace(n, *cut);
        behind_[n] = *last;
      }
    }
    if (!last) failed_.emplace(tensor, false);
    return last;
  }

  const Graph& graph_;
  const Mesh mesh_;
  const uint64_t least_bytes_;
  std::vector<std::vector<size_t>> readers_;  // by tensor
  Cuts cuts_;
  Links links_;
  std::map<size_t, size_t> behind_;             // by node between a reduction and a gather: the reduction
  std::set<std::pair<TensorId, bool>> failed_;  // where the present search has been in vain
};

// Makes each part when it is needed: all of a reduction's first part, then all of its second.
class Cutter {
 public:
  Cutter(const Graph& graph, int64_t parts, uint64_t least_bytes)
      : graph_(graph), parts_(parts), r_(graph), is_there_(graph.tensors.size(), false), made_(graph.tensors.size()) {
    std::tie(cuts_, links_) = ChosenCuts(graph, parts, least_bytes).run();
    for (const GraphInput& input : graph.inputs) is_there_[input.tensor.index()] = true;
    for (const auto& [n, cut] : cuts_)
      made_[graph.nodes[n].outputs[0].index()].emplace(Made{cut.result, std::vector<TensorId>(size())});
  }

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!cuts_.contains(n))
        make_whole(node);
      else if (reduces(node))
        for (size_t p = 0; p < size(); ++p) reduce_part(n, p);
    }
    for (const GraphOutput& output : graph_.outputs)
      if (output.tensor.valid()) whole(output.tensor);
    return r_.finish();
  }

 private:
  struct Made {
    Split split;
    std::vector<TensorId> parts;  // invalid: not yet
  };

  void reduce_part(size_t reduction, size_t p) {
    part(graph_.nodes[reduction].outputs[0], p);
    const auto [begin, end] = links_.equal_range(reduction);
    for (auto link = begin; link != end; ++link) {
      size_t budget = kMostOnTheWay;
      if (can_make(graph_.nodes[link->second].outputs[0], p, budget)) part(graph_.nodes[link->second].outputs[0], p);
    }
  }
  // Whether a part, or without one all of a tensor, needs no part that is still to come, and few nodes.
  bool can_make(TensorId old, std::optional<size_t> p, size_t& budget) {
    if (is_there_[old.index()]) return true;
    if (budget-- == 0) return false;
    const NodeId producer = graph_.tensors[old.index()].producer;
    const Node& node = graph_.nodes[producer.index()];
    const std::optional<Made>& made = made_[old.index()];
    if (made && !p) return std::ranges::all_of(made->parts, &TensorId::valid);
    if (made && made->parts[*p].valid()) return true;
    if (node.aten || (made && reduces(node))) return false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const bool in_parts = made && is_in_parts(node.inputs[i], cuts_.at(producer.index()).operands[i]);
      if (!can_make(node.inputs[i], in_parts ? p : std::nullopt, budget)) return false;
      if (budget == 0) return false;
    }
    return true;
  }
  [[nodiscard]] bool is_in_parts(TensorId old, const std::optional<Split>& split) const {
    const std::optional<Made>& made = made_[old.index()];
    return split && made && made->split == *split;
  }

  void make_whole(const Node& node) {
    if (!node.outputs.empty() && is_there_[node.outputs[0].index()]) return;
    for (TensorId input : node.inputs) whole(input);
    r_.keep(node);
    for (TensorId output : node.outputs) is_there_[output.index()] = true;
  }
  TensorId whole(TensorId old) {
    if (is_there_[old.index()]) return r_[old];
    const Node& node = graph_.nodes[graph_.tensors[old.index()].producer.index()];
    if (made_[old.index()])
      join(old, node);
    else
      make_whole(node);
    return r_[old];
  }
  void join(TensorId old, const Node& node) {
    const Shape shape = graph_.shape(old);
    const auto [open, dim] = opened(shape, made_[old.index()]->split, 1);
    std::vector<TensorId> parts;
    for (size_t p = 0; p < size(); ++p) parts.push_back(part(old, p));
    r_.at(node);
    for (TensorId& one : parts) one = b().reshape(one, open);
    r_.replace(old, b().reshape(b().add("concat", parts, {{"dim", static_cast<int64_t>(dim)}}), shape));
    is_there_[old.index()] = true;
  }

  TensorId part(TensorId old, size_t p) {
    if (const TensorId known = made_[old.index()]->parts[p]; known.valid()) return known;
    const size_t n = graph_.tensors[old.index()].producer.index();
    const Node& node = graph_.nodes[n];
    const Cut& cut = cuts_.at(n);
    std::vector<TensorId> inputs;
    std::vector<Shape> shapes;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::optional<Split>& split = cut.operands[i];
      inputs.push_back(!split                               ? whole(node.inputs[i])
                       : is_in_parts(node.inputs[i], split) ? part(node.inputs[i], p)
                                                            : slices(node, node.inputs[i], *split)[p]);
      shapes.push_back(b().shape(inputs.back()));
    }
    Shape local = graph_.shape(old);
    local[cut.result.at] /= parts_;
    r_.at(node);
    const TensorId made = b().add(node.op, inputs, attrs_of(node, shapes, local));
    made_[old.index()]->parts[p] = made;
    return made;
  }
  [[nodiscard]] Attrs attrs_of(const Node& node, const std::vector<Shape>& operands, const Shape& result) const {
    const OpDef& op = op_def(node.op);
    if (op.local_attrs != nullptr) return op.local_attrs(call_of(graph_, node), operands, {result});
    Attrs attrs = node.attrs;
    if (op.has(Trait::kShapeAttr)) attrs.set("shape", result);
    return attrs;
  }
  const std::vector<TensorId>& slices(const Node& reader, TensorId old, const Split& split) {
    std::vector<TensorId>& parts = sliced_[{old, split.at, split.inner}];
    if (!parts.empty()) return parts;
    Shape local = graph_.shape(old);
    const auto [open, dim] = opened(local, split, parts_);
    local[split.at] /= parts_;
    const TensorId made = whole(old);
    r_.at(reader);
    const TensorId all = b().reshape(made, open);
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

  static constexpr size_t kMostOnTheWay = 64;  // nodes from a reduction to a gather

  const Graph& graph_;
  const int64_t parts_;
  Cuts cuts_;
  Links links_;
  Rewriter r_;
  std::vector<bool> is_there_;             // by old tensor: whole
  std::vector<std::optional<Made>> made_;  // by old tensor
  std::map<std::tuple<TensorId, size_t, int64_t>, std::vector<TensorId>> sliced_;
};

}  // namespace

Graph cut_exchanges(const Graph& graph, int64_t parts, uint64_t least_bytes) {
  return parts == 1 ? graph : Cutter(graph, parts, least_bytes).run();
}

}  // namespace stepc
