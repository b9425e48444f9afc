#include "passes/partition/sharded_builder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/chains.h"
#include "passes/partition/means_by_rank.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

TensorId ShardedBuilder::add_input(const GraphInput& input, const TensorType& type, Sharding sharding,
                                   const Origins& origins) {
  const TensorId id = graph_.add_input(input, type);
  graph_.tensors[id.index()].sharding = std::move(sharding);
  origins_.push_back(origins);
  resharded_.emplace_back();
  return id;
}

void ShardedBuilder::at(const Source& source) {
  if (source.phase != source_.phase) ++section_;
  source_ = source;
}

std::vector<TensorId> ShardedBuilder::add(Node node, const std::vector<TensorType>& types,
                                          std::vector<Sharding> shardings, const Origins& origins, std::string why) {
  node.source = source_;
  const NodeId id = graph_.add_node(std::move(node), types);
  std::vector<TensorId> outputs = graph_.nodes[id.index()].outputs;
  for (size_t k = 0; k < outputs.size(); ++k) graph_.tensors[outputs[k].index()].sharding = std::move(shardings[k]);
  origins_.resize(graph_.tensors.size(), origins);
  resharded_.resize(graph_.tensors.size());
  why_.push_back(std::move(why));
  return outputs;
}

// Whether something is gathered, and along no axes but those whose gathers are kept.
bool ShardedBuilder::is_kept(const Sharding& from, const Sharding& to) const {
  bool is_gathered = false;
  for (Axis axis = 0; axis < graph_.mesh.axes.size(); ++axis) {
    if (!from.splits(axis) || to.splits(axis)) continue;
    if (!strategy_.keeps_along(axis)) return false;
    is_gathered = true;
  }
  return is_gathered;
}

TensorId ShardedBuilder::reshard(TensorId x, const Sharding& to, bool keeps, std::optional<DType> sent) {
  if (sharding(x) == to) return x;
  const bool is_once = keeps || !sharding(x).partial.empty() || is_kept(sharding(x), to);
  for (const Resharded& known : resharded_[x.index()])
    if ((is_once || known.section == section_) && sharding(known.tensor) == to) return known.tensor;
  const DType own = graph_.type(x).dtype;
  const TensorId made = sent ? cast(make_resharded(cast(x, *sent), to), own) : make_resharded(x, to);
  resharded_[x.index()].push_back({made, section_});
  return made;
}

TensorId ShardedBuilder::add_like(TensorId x, Node node, const Sharding& to, std::string why) {
  const Origins origins = origins_[x.index()];
  return add(std::move(node), {graph_.type(x)}, {to}, origins, std::move(why))[0];
}

TensorId ShardedBuilder::cast(TensorId x, DType dtype) {
  Node node;
  node.op = "cast";
  node.inputs = {x};
  node.attrs.set("dtype", dtype);
  const Origins origins = origins_[x.index()];
  const TensorType type = {dtype, graph_.shape(x)};
  return add(std::move(node), {type}, {sharding(x)}, origins, "is sent in another dtype")[0];
}

TensorId ShardedBuilder::make_resharded(TensorId x, const Sharding& to) {
  const Node* producer = graph_.producer(x);
  if (producer != nullptr && collective_of(*producer) == Collective::kReshard && !averages(*producer) &&
      sharding(producer->inputs[0]) == to)
    return producer->inputs[0];
  if (const auto repeated = before_repeats(x, to)) return *repeated;
  if (const auto parts = in_parts(x, to)) return *parts;
  Node node;
  node.op = "reshard";
  node.inputs = {x};
  return add_like(x, std::move(node), to, str("{} is needed", to_text(to, graph_.shape(x), graph_.mesh)));
}

// What views repeat is sent before they do.
std::optional<TensorId> ShardedBuilder::before_repeats(TensorId x, const Sharding& to) {
  const Node* producer = graph_.producer(x);
  bool is_repeated = false;
  for (const Node* node = producer; node != nullptr && is_view(*node); node = graph_.producer(node->inputs[0]))
    is_repeated |= element_count(graph_.shape(node->inputs[0])) < element_count(graph_.shape(x));
  if (!is_repeated || !sharding(x).partial.empty() || !to.partial.empty()) return std::nullopt;
  Node view = *producer;
  const ShardingRule rule = sharding_rule_of(graph_, view);
  const FactorSplits found = onto_factors(to, graph_.shape(x), rule.results[0], rule);
  if (!found.unfit.empty()) return std::nullopt;
  const TensorId operand = view.inputs[0];
  view.inputs[0] =
      reshard(operand, from_factors(found.splits, graph_.shape(operand), rule.operands[0], rule, graph_.mesh));
  return add_like(x, std::move(view), to, "repeats what is resharded before it");
}

namespace {
// Whether `to` splits further what `from` splits, and no more than that.
bool only_splits(const Sharding& from, const Sharding& to, const Shape& shape) {
  if (!from.partial.empty() || !to.partial.empty()) return false;
  const std::vector<Split> after = splits_of(to, shape);
  return std::ranges::all_of(splits_of(from, shape),
                             [&](const Split& split) { return std::ranges::find(after, split) != after.end(); });
}
}  // namespace

// What is cheap to make is made in parts rather than whole and cut: masks, positions, what is repeated. Where parts of
// a sum are needed, zeros are such.
std::optional<TensorId> ShardedBuilder::in_parts(TensorId x, const Sharding& to) {
  const Node* producer = graph_.producer(x);
  if (producer == nullptr || producer->aten) return std::nullopt;
  Sharding splits = to;
  if (is_zero(graph_, x)) splits.partial.clear();
  if (!only_splits(sharding(x), splits, graph_.shape(x))) return std::nullopt;
  const OpDef& op = op_def(producer->op);
  constexpr Trait kCheap[] = {Trait::kElementwise, Trait::kView, Trait::kConstant, Trait::kRandom};
  if (std::ranges::none_of(kCheap, [&](Trait trait) { return op.has(trait); })) return std::nullopt;
  Node parts = *producer;
  const ShardingRule rule = sharding_rule_of(graph_, parts);
  const FactorSplits found = onto_factors(splits, graph_.shape(x), rule.results[0], rule);
  if (!found.unfit.empty()) return std::nullopt;
  std::vector<Sharding> needed;
  for (size_t i = 0; i < parts.inputs.size(); ++i) {
    const Shape shape = graph_.shape(parts.inputs[i]);
    needed.push_back(from_factors(found.splits, shape, rule.operands[i], rule, graph_.mesh));
    if (!only_splits(sharding(parts.inputs[i]), needed[i], shape)) return std::nullopt;
  }
  for (size_t i = 0; i < parts.inputs.size(); ++i) {
    if (splits.partial != to.partial) needed[i].partial = to.partial;
    parts.inputs[i] = reshard(parts.inputs[i], needed[i]);
  }
  return add_like(x, std::move(parts), to, "made in parts where parts are needed");
}

}  // namespace stepc
