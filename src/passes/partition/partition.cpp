#include "passes/partition/partition.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "ops/rules/aten_rules.h"
#include "passes/partition/chains.h"
#include "passes/partition/means_by_rank.h"
#include "passes/partition/ranks.h"
#include "passes/partition/ring_attention.h"
#include "passes/partition/shardings/splits.h"

namespace stepc {

namespace {

// What a reduction over a factor of that kind leaves as it is.
double neutral(Factor::Kind kind, DType dtype) {
  if (kind != Factor::Kind::kMax && kind != Factor::Kind::kMin) return 0;
  const double sign = kind == Factor::Kind::kMax ? -1 : 1;
  if (is_floating(dtype)) return sign * std::numeric_limits<double>::infinity();
  if (dtype == DType::kBool) return kind == Factor::Kind::kMax ? 0 : 1;
  return sign * std::exp2(8 * static_cast<double>(size_of(dtype)) - 2);
}

class Partition {
 public:
  explicit Partition(const Graph& sharded) : whole_(sharded), mesh_(sharded.mesh), now_(sharded.tensors.size()) {}

  Graph run() {
    b_.graph().mesh = mesh_;
    for (const GraphInput& input : whole_.inputs) {
      GraphInput local = input;
      if (!sharding(input.tensor).is_whole()) {
        local.part = PartOf{whole_.shape(input.tensor), sharding(input.tensor)};
        local.strides.clear();
        local.offset = 0;
      }
      now_[input.tensor.index()] = b_.graph().add_input(std::move(local), local_type(input.tensor));
    }
    const auto turns = mesh_.find(kMicroBatchAxis);
    const auto axes = static_cast<int64_t>(mesh_.axes.size()) - (turns ? 1 : 0);
    const TensorId at = b_.graph().add_input({InputKind::kMesh, "", {}, {}, 0}, {DType::kI64, {axes}});
    RankBuilder ranks(b_, at);
    if (turns)
      ranks.stand_at(
          *turns, b_.graph().add_input({InputKind::kMesh, std::string(kMicroBatchAxis), {}, {}, 0}, {DType::kI64, {}}));
    ranks_ = &ranks;
    for (const Node& node : whole_.nodes) lower(node);
    for (GraphOutput output : whole_.outputs) {
      if (output.tensor.valid()) {
        const TensorId whole = output.tensor;
        if (!sharding(whole).is_whole()) {
          output.part = PartOf{whole_.shape(whole), sharding(whole)};
          output.strides.clear();
        }
        output.tensor = now_[whole.index()];
      }
      b_.graph().outputs.push_back(std::move(output));
    }
    return b_.take();
  }

 private:
  [[nodiscard]] const Sharding& sharding(TensorId whole) const {
    const auto& known = whole_.tensors[whole.index()].sharding;
    INTERNAL_CHECK(known, "%{} has no sharding", whole);
    return *known;
  }
  [[nodiscard]] TensorType local_type(TensorId whole) const {
    return {whole_.type(whole).dtype, local_shape(sharding(whole), whole_.shape(whole), mesh_)};
  }

  void lower(const Node& node) {
    b_.set_source(node.source);
    if (collective_of(node) == Collective::kReshard) {
      const TensorId from = node.inputs[0];
      if (averages(node)) {
        const double share = 1 / static_cast<double>(node.attrs.get<int64_t>("ranks"));
        const TensorId own = now_[from.index()];
        now_[node.outputs[0].index()] = b_.add("mul", {own, b_.full(share, b_.dtype(own))});
        return;
      }
      now_[node.outputs[0].index()] =
          ranks_->reshard(now_[from.index()], whole_.shape(from), sharding(from), sharding(node.outputs[0]));
      return;
    }
    if (const auto axis = ring_axis(whole_, node)) {
      std::vector<TensorId> operands;
      for (TensorId input : node.inputs) operands.push_back(now_[input.index()]);
      return keep(node, around_ring(b_, *ranks_, whole_, node, *axis, operands));
    }
    Call call{node, sharding_rule_of(whole_, node), {}, {}};
    for (TensorId input : node.inputs) call.operands.push_back(now_[input.index()]);
    find_splits(call);
    mask_padding(call);
    count_once(call);
    number_places(call);
    std::optional<TensorId> is_here;
    if (call.rule.indexed) is_here = shift_indices(call);
    std::vector<TensorId> results = call.rule.counts ? count_from(call) : emit(call);
    if (is_here && !call.rule.indexed->values)
      results[0] = masked_by_index(call, *is_here, results[0], node.outputs[0]);
    keep(node, results);
  }

  void keep(const Node& node, const std::vector<TensorId>& results) {
    for (size_t k = 0; k < results.size(); ++k) {
      INTERNAL_CHECK(b_.type(results[k]) == local_type(node.outputs[k]), "a rank's {} makes a {} for a {}", node.op,
                     to_text(b_.type(results[k])), to_text(local_type(node.outputs[k])));
      now_[node.outputs[k].index()] = results[k];
    }
  }

  struct Call {
    const Node& node;
    ShardingRule rule;
    std::vector<TensorId> operands;  // this rank's
    std::vector<Split> splits;       // of the rule's factors
  };

  // What is split of the rule's factors: operands and results agree.
  void find_splits(Call& call) {
    const auto add = [&](TensorId tensor, const ShardingRule::Dims& dims) {
      const FactorSplits found = onto_factors(sharding(tensor), whole_.shape(tensor), dims, call.rule);
      INTERNAL_CHECK(found.unfit.empty(), "{} cannot have a {} that lies as {}", call.node.op,
                     to_text(whole_.type(tensor)), to_text(sharding(tensor), whole_.shape(tensor), mesh_));
      for (const Split& split : found.splits)
        if (std::ranges::find(call.splits, split) == call.splits.end()) call.splits.push_back(split);
    };
    for (size_t i = 0; i < call.node.inputs.size(); ++i) add(call.node.inputs[i], call.rule.operands[i]);
    for (size_t k = 0; k < call.node.outputs.size(); ++k) add(call.node.outputs[k], call.rule.results[k]);
    const auto check = [&](TensorId tensor, const ShardingRule::Dims& dims) {
      INTERNAL_CHECK(
          from_factors(call.splits, whole_.shape(tensor), dims, call.rule, mesh_).dims == sharding(tensor).dims,
          "{}: a {} that lies as {} beside others", call.node.op, to_text(whole_.type(tensor)),
          to_text(sharding(tensor), whole_.shape(tensor), mesh_));
    };
    for (size_t i = 0; i < call.node.inputs.size(); ++i) check(call.node.inputs[i], call.rule.operands[i]);
    for (size_t k = 0; k < call.node.outputs.size(); ++k) check(call.node.outputs[k], call.rule.results[k]);
  }

  // Padding along a factor that some result sums over holds what leaves the sum as it is.
  void mask_padding(Call& call) {
    for (const Split& split : call.splits) {
      const bool reduces =
          std::ranges::any_of(call.rule.results, [&](const auto& dims) { return !has_factor(dims, split.at); });
      if (!reduces || is_even(split.piece, mesh_)) continue;
      for (size_t i = 0; i < call.operands.size(); ++i)
        for (size_t d = 0; d < call.rule.operands[i].size(); ++d) {
          const std::vector<int>& factors = call.rule.operands[i][d];
          if (std::ranges::find(factors, static_cast<int>(split.at)) == factors.end()) continue;
          const TensorId whole = call.node.inputs[i];
          const auto real = ranks_->are_real(sharding(whole).dims[d], whole_.shape(whole)[d]);
          const double value = neutral(call.rule.factors[split.at].kind, b_.dtype(call.operands[i]));
          call.operands[i] = ranks_->where_along(*real, d, call.operands[i], value);
        }
    }
  }

  // The operand of a sum that its parts count once.
  void count_once(Call& call) {
    if (!call.rule.once) return;
    const size_t once = *call.rule.once;
    std::vector<Axis> axes;
    for (const Split& split : call.splits)
      if (call.rule.factors[split.at].kind == Factor::Kind::kSum && !has_factor(call.rule.operands[once], split.at))
        axes.insert(axes.end(), split.piece.axes.begin(), split.piece.axes.end());
    if (axes.empty() || is_zero(b_.graph(), call.operands[once])) return;
    call.operands[once] = ranks_->where(ranks_->is_first(axes), call.operands[once], 0);
  }

  // Indices count from where this rank's range begins; gives which of them are within it.
  std::optional<TensorId> shift_indices(Call& call) {
    const ShardingRule::Indexed& indexed = *call.rule.indexed;
    const auto split = std::ranges::find(call.splits, static_cast<size_t>(indexed.factor), &Split::at);
    if (split == call.splits.end()) return std::nullopt;
    const int64_t here = local_extent(split->piece, mesh_) * split->inner;
    TensorId& indices = call.operands[indexed.indices];
    const DType dtype = b_.dtype(indices);
    const auto number = [&](int64_t value) { return b_.full(static_cast<double>(value), dtype); };
    TensorId begin = b_.cast(ranks_->begin(split->piece), dtype);
    if (split->inner != 1) begin = b_.add("mul", {begin, number(split->inner)});
    const TensorId shifted = b_.add("sub", {indices, begin});
    const TensorId is_here =
        b_.add("logical_and", {b_.add("le", {number(0), shifted}), b_.add("lt", {shifted, number(here)})});
    indices = ranks_->where(is_here, shifted, 0);
    if (indexed.values) {
      const size_t values = *indexed.values;
      call.operands[values] = masked_by_index(call, is_here, call.operands[values], call.node.inputs[values]);
    }
    return is_here;
  }
  // `x`, which has the indices' dimensions, where they are this rank's, else 0. `whole`: the tensor that it is a part
  // of.
  TensorId masked_by_index(Call& call, TensorId is_here, TensorId x, TensorId whole) {
    const OpDef& op = op_def(call.node.op);
    const Shape indices = b_.shape(is_here);
    const size_t rank = whole_.shape(whole).size();
    Shape shape(rank, 1);
    const size_t first = op.index_use->slices ? static_cast<size_t>(call.node.attrs.get<int64_t>("dim")) : 0;
    for (size_t d = 0; d < indices.size(); ++d) shape[first + d] = indices[d];
    return ranks_->where(b_.reshape(is_here, shape), x, 0);
  }

  // Elements of a split draw are told their places in the whole.
  void number_places(Call& call) {
    if (!call.rule.numbered || call.operands.size() > *call.rule.numbered) return;
    const TensorId whole = call.node.outputs[0];
    if (sharding(whole).is_whole()) return;
    const Shape local = local_type(whole).shape;
    const Shape strides = contiguous_strides(whole_.shape(whole));
    std::optional<TensorId> places;
    for (size_t d = 0; d < local.size(); ++d) {
      const TensorId along = ranks_->places(sharding(whole).dims[d], whole_.shape(whole)[d]);
      Shape shape(local.size(), 1);
      shape[d] = local[d];
      const TensorId stride = b_.full(static_cast<double>(strides[d]), DType::kI64);
      const TensorId part = b_.reshape(b_.add("mul", {along, stride}), shape);
      places = places ? b_.add("add", {*places, part}) : part;
    }
    call.operands.push_back(b_.expand(*places, local));
  }

  // What counts places along a dimension counts those of the whole.
  std::vector<TensorId> count_from(Call& call) {
    const TensorId whole = call.node.outputs[0];
    const auto dim = static_cast<size_t>(*call.rule.counts);
    if (sharding(whole).dims[dim].empty()) return emit(call);
    const TensorType type = local_type(whole);
    TensorId value = b_.cast(ranks_->places(sharding(whole).dims[dim], whole_.shape(whole)[dim]), type.dtype);
    value = b_.add("mul", {value, b_.full(call.node.attrs.number("step"), type.dtype)});
    value = b_.add("add", {value, b_.full(call.node.attrs.number("start"), type.dtype)});
    Shape along(type.shape.size(), 1);
    along[dim] = type.shape[dim];
    return {b_.expand(b_.reshape(value, along), type.shape)};
  }

  std::vector<TensorId> emit(Call& call) {
    const Node& node = call.node;
    std::vector<TensorType> types;
    for (TensorId output : node.outputs) types.push_back(local_type(output));
    std::vector<Shape> operands, results;
    for (TensorId operand : call.operands) operands.push_back(b_.shape(operand));
    for (const TensorType& type : types) results.push_back(type.shape);
    if (node.aten) {
      Node local = node;
      local.inputs = call.operands;
      local.aten = local_aten_call(whole_, node, operands, results);
      return b_.add_aten(std::move(local), types);
    }
    const OpDef& op = op_def(node.op);
    Attrs attrs = node.attrs;
    if (op.local_attrs != nullptr) {
      attrs = op.local_attrs(call_of(whole_, node), operands, results);
    } else if (op.has(Trait::kShapeAttr)) {
      attrs.set("shape", types[0].shape);
    }
    return b_.add_all(node.op, call.operands, attrs);
  }

  const Graph& whole_;
  const Mesh& mesh_;
  GraphBuilder b_;
  RankBuilder* ranks_ = nullptr;
  std::vector<TensorId> now_;  // by tensor of the whole step
};

}  // namespace

Graph partition(const Graph& sharded) { return Partition(sharded).run(); }

void keep_parameters(Strategy& strategy, const Graph& local) {
  for (const GraphInput& input : local.inputs)
    if (input.kind == InputKind::kParameter)
      strategy.known[input.key] = input.part ? input.part->sharding : Sharding::whole(local.shape(input.tensor).size());
}

}  // namespace stepc
