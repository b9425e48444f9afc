#include "passes/partition/shardings/propagate_shardings.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/check.h"
#include "ops/op_def.h"
#include "passes/partition/means_by_rank.h"
#include "passes/partition/prepare.h"
#include "passes/partition/ring_attention.h"
#include "passes/partition/seeds.h"
#include "passes/partition/sharded_builder.h"
#include "passes/partition/shardings/splits.h"
#include "passes/partition/tensor_parallel.h"

namespace stepc {

namespace {

// How much an axis prefers a split of that origin.
int preference(Origin origin, bool is_model_axis) {
  switch (origin) {
    case Origin::kNone:
      return 0;
    case Origin::kBatch:
      return is_model_axis ? 1 : 3;
    case Origin::kState:
      return 2;
    case Origin::kParameter:
      return is_model_axis ? 3 : 1;
  }
  return 0;
}

// An operand's split, of the factor that it is on.
struct Offer {
  Split split;
  Origin origin = Origin::kNone;
  int preferred = 0;
  int64_t bytes = 0;  // of the operands that lie so
  size_t operand = 0;
};

// Of n, those just below and above `ranks`, in words.
std::string nearest_divisors(int64_t n, int64_t ranks) {
  std::vector<int64_t> near;
  for (int64_t below = ranks - 1; below >= 1 && near.empty(); --below)
    if (n % below == 0) near.push_back(below);
  for (int64_t above = ranks + 1; above <= n; ++above)
    if (n % above == 0) {
      near.push_back(above);
      break;
    }
  return str("{}", fmt::join(near, " or "));
}

// What is known beside the seeds.
struct Hints {
  // The axis along which look-ups of tokens split the sequence.
  std::optional<Axis> sequence_axis = {};
  // By axis along which the sequence is split, and by tensor of the step: how it would lie were that all. What has no
  // more than a number a token is not split so: it is too small to be worth a second collective.
  const std::map<Axis, std::vector<Sharding>>* sequence = nullptr;
  int64_t tokens = 0;
  // Whether that is in zig-zag: of twice as many chunks as ranks each has an early and a late one.
  bool zigzags = false;
  // Where the sequence is split over cp, whether attention goes by heads, or around a ring.
  bool by_heads = false, around_ring = false;
  // Where tensor parallelism is sought, what it finds: by graph input.
  std::vector<std::optional<Sharding>>* found = nullptr;
};

class Propagation {
 public:
  Propagation(const Graph& graph, const Strategy& strategy, Seeds seeds, Hints hints)
      : old_(graph),
        strategy_(strategy),
        mesh_(strategy.mesh),
        seeds_(std::move(seeds)),
        hints_(hints),
        uses_(use_counts(graph)),
        b_(strategy_),
        now_(graph.tensors.size()),
        is_of_batch_(graph.tensors.size(), false),
        is_own_(own_to_ranks(graph, strategy)) {
    if (const auto tp = mesh_.find("tp")) tp_ = *tp;
    if (const std::vector<Axis> shard = state_axes(mesh_);
        !shard.empty() && strategy.zero >= 2 && !strategy.keeps_along(shard.front()))
      for (Axis axis : shard) reduced_each_[axis] = true;
    for (Axis axis = 0; axis < mesh_.axes.size(); ++axis)
      is_model_axis_[axis] = mesh_.axes[axis].name == "tp" || mesh_.axes[axis].name == "ep";
    for (Axis axis : data_axes(mesh_)) is_data_axis_[axis] = true;
  }

  ShardedStep run() {
    visit_nodes();
    for (const GraphOutput& output : old_.outputs) leave(output);
    return {b_.take(), b_.take_reasons()};
  }

  // As far as the outputs, for what is then known of the step.
  void visit_nodes() {
    for (size_t i = 0; i < old_.inputs.size(); ++i) {
      const GraphInput& input = old_.inputs[i];
      const auto& [sharding, origin] = seeds_.inputs[i];
      Origins origins{};
      for (const Split& split : splits_of(sharding, old_.shape(input.tensor)))
        for (Axis axis : split.piece.axes) origins[axis] = origin;
      now_[input.tensor.index()] = b_.add_input(input, old_.type(input.tensor), sharding, origins);
      is_of_batch_[input.tensor.index()] = input.kind == InputKind::kBatch;
    }
    for (const Node& node : old_.nodes) visit(node);
  }
  // By tensor of the step, how it lies.
  [[nodiscard]] std::vector<Sharding> shardings() const {
    std::vector<Sharding> out;
    for (TensorId now : now_) out.push_back(b_.sharding(now));
    return out;
  }
  // Of the look-ups that sequence_axis split.
  [[nodiscard]] int64_t tokens() const { return tokens_; }

 private:
  [[nodiscard]] const Sharding& sharding_of(TensorId old) const { return b_.sharding(now_[old.index()]); }

  // ---- partial sums

  // `split` among those that are there; where another begins at its place, as a part of that one's parts.
  void add_beside(std::vector<Split>& splits, Split split, const Shape& shape) {
    const int64_t ranks = mesh_.size(split.piece.axes);
    for (const Split& other : splits) {
      const int64_t spans = other.inner * other.piece.extent * (other.piece.zigzags ? 2 : 1);
      const bool meets = other.at == split.at && spans == split.inner * split.piece.extent;
      if (meets && other.inner % ranks == 0) split = {split.at, {ranks, split.piece.axes}, other.inner / ranks};
    }
    splits.push_back(split);
    if (!fit_together(splits, split.at, shape[split.at])) splits.pop_back();
  }

  // What a partial tensor becomes where it must be whole: split along its partial axes as the state of its parameter
  // is, as the operand was whose gradient it is, or as the sequence is; else everywhere.
  Sharding settled(TensorId old, const Sharding& now) {
    if (now.partial.empty()) return now;
    const Shape& shape = old_.shape(old);
    std::vector<Split> splits = splits_of(now, shape);
    // A split over several axes is adopted at the first of them, if it is partial over all.
    const auto adopt = [&](const Sharding& target, Axis axis) {
      for (const Split& split : splits_of(target, shape))
        if (split.piece.axes.front() == axis &&
            std::ranges::all_of(split.piece.axes, [&](Axis one) { return now.partial_over(one).has_value(); }))
          add_beside(splits, split, shape);
    };
    for (const Partial& one : now.partial) {
      const auto gathered = as_operand_.find(now_[old.index()]);
      if (const auto& wanted = seeds_.wanted[old.index()]) {
        adopt(*wanted, one.axis);
      } else if (gathered != as_operand_.end() && gathered->second.splits(one.axis)) {
        adopt(gathered->second, one.axis);
      } else if (hints_.sequence != nullptr && element_count(shape) > hints_.tokens) {
        if (const auto found = hints_.sequence->find(one.axis); found != hints_.sequence->end())
          adopt(found->second[old.index()], one.axis);
      }
    }
    return {pieces_of(splits, shape, mesh_), {}};
  }

  // Whether parts along `axis` may stay parts: the node makes parts of its result of them, and nothing else is made of
  // them that would need the whole twice.
  bool passes(const Node& node, Axis axis) {
    if (node.aten || is_own(node, axis)) return false;
    const OpDef& op = op_def(node.op);
    const bool is_linear = op.has(Trait::kLinear);
    if (!is_linear && !op.has(Trait::kScales)) return false;
    const TensorType& result = old_.type(node.outputs[0]);
    size_t parts = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorId input = node.inputs[i];
      const Sharding& lies = sharding_of(input);
      const auto op_there = lies.partial_over(axis);
      if (!op_there) {
        if (lies.splits(axis)) return false;
        continue;
      }
      ++parts;
      const bool may_scale = is_linear || i == 0 || op.has(Trait::kCommutative);
      const bool is_narrowed = size_of(result.dtype) < size_of(old_.type(input).dtype);
      if (*op_there != ReduceOp::kSum || !may_scale || is_narrowed || !is_floating(result.dtype)) return false;
      if (uses_[input.index()] > 1) return false;
      // What is repeated is sent once.
      if (node.inputs.size() == 1 && element_count(result.shape) > element_count(old_.shape(input))) return false;
      // Each micro-batch's gradient is to be reduced by itself over what splits it.
      if (reduced_each_[axis] && node.inputs.size() > 1 && is_linear && seeds_.wanted[input.index()]) return false;
    }
    if (parts == 0) return false;
    return is_linear ? parts == node.inputs.size() || op.min_inputs != op.max_inputs : parts == 1;
  }

  // How what is reduced on the way to lying as `to` is sent, if not in its own dtype: gradients may go narrower.
  std::optional<DType> sent_as(TensorId old, const Sharding& to) {
    const Sharding& from = sharding_of(old);
    const bool is_gradient = seeds_.wanted[old.index()].has_value() && is_floating(old_.type(old).dtype);
    const bool is_reduced =
        std::ranges::any_of(from.partial, [&](const Partial& part) { return !to.partial_over(part.axis); });
    const bool is_wider = size_of(strategy_.reduce) < size_of(old_.type(old).dtype);
    if (strategy_.reduce == DType::kF32 || !is_gradient || !is_reduced || !is_wider) return std::nullopt;
    return strategy_.reduce;
  }

  // ---- what each rank computes of its own rows

  // Along such an axis it lies whole, and so does what meets it.
  [[nodiscard]] bool is_own(const Node& node, Axis axis) const {
    return is_data_axis_[axis] && std::ranges::any_of(node.outputs, [&](TensorId id) { return is_own_[id.index()]; });
  }
  // The ranks' parts of their mean.
  void average(const Node& node) {
    Sharding lies = sharding_of(node.inputs[0]);
    if (std::ranges::any_of(lies.partial, [](const Partial& one) { return one.op != ReduceOp::kSum; }))
      lies = settled(node.inputs[0], lies);
    Node made = node;
    made.inputs = {b_.reshard(now_[node.inputs[0].index()], lies)};
    Sharding parts = lies;
    for (Axis axis : data_axes(mesh_)) parts.set_partial(axis, ReduceOp::kSum);
    const Origins origins = b_.origins(made.inputs[0]);
    now_[node.outputs[0].index()] =
        b_.add(std::move(made), {old_.type(node.outputs[0])}, {parts}, origins, "each rank has its own")[0];
  }

  // ---- the op at hand

  void visit(const Node& node) {
    b_.at(node.source);
    if (averages(node)) return average(node);
    const ShardingRule rule = sharding_rule_of(old_, node);
    std::vector<Axis> passing;
    for (Axis axis = 0; axis < mesh_.axes.size(); ++axis)
      if (passes(node, axis)) passing.push_back(axis);
    std::vector<Offer> offers = offers_of(node, rule, passing);
    std::erase_if(offers, [&](const Offer& offer) { return is_own(node, offer.split.piece.axes[0]); });
    if (seeks(node)) seek(node, rule, offers);
    if (hints_.sequence_axis) offer_sequence(node, rule, offers);
    const bool by_heads = hints_.by_heads && rule.heads && goes_by_heads(node, rule, offers);
    const bool around_ring = hints_.around_ring && attends(node) && goes_around_ring(node, offers);
    const std::vector<Offer> chosen = choose(rule, std::move(offers), passing);
    if (node.aten && !is_host_code(node)) check_batch(node, chosen);

    std::vector<Split> splits;
    Origins origins{};
    for (const Offer& offer : chosen) {
      splits.push_back(offer.split);
      for (Axis axis : offer.split.piece.axes) origins[axis] = offer.origin;
    }
    if (around_ring) origins[*hints_.sequence_axis] = Origin::kBatch;
    if (seeks(node)) note_parameters(node, rule, splits);
    Node made = node;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Sharding to = from_factors(splits, old_.shape(node.inputs[i]), rule.operands[i], rule, mesh_);
      // A number that parts are scaled by is no part.
      for (Axis axis : passing)
        if (!op_def(node.op).has(Trait::kScales) || sharding_of(node.inputs[i]).partial_over(axis))
          to.set_partial(axis, ReduceOp::kSum);
      if (around_ring) split_sequence_of_operand(to, node, i);
      made.inputs[i] = b_.reshard(now_[node.inputs[i].index()], to, by_heads, sent_as(node.inputs[i], to));
    }
    std::vector<TensorType> types;
    std::vector<Sharding> results;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      types.push_back(old_.type(node.outputs[k]));
      Sharding result = from_factors(splits, types[k].shape, rule.results[k], rule, mesh_);
      for (const Split& split : splits)
        if (!has_factor(rule.results[k], split.at))
          for (Axis axis : split.piece.axes) result.set_partial(axis, reduction_of(rule.factors[split.at].kind));
      for (Axis axis : passing) result.set_partial(axis, ReduceOp::kSum);
      if (around_ring)
        split_sequence(result, node, node.outputs[k], attention_places(node).is_backward && k > 0, kSequence);
      results.push_back(std::move(result));
    }
    const std::vector<TensorId> outputs =
        b_.add(std::move(made), types, std::move(results), origins,
               around_ring ? "keys and values go around a ring" : reason(chosen, passing, node));
    for (size_t k = 0; k < outputs.size(); ++k) {
      now_[node.outputs[k].index()] = by_heads ? back_to_sequence(node, node.outputs[k], outputs[k]) : outputs[k];
      note_operand(node, rule, k);
    }
  }

  // ---- attention by heads (DeepSpeed Ulysses): in front of it the sequence's split becomes one of heads, behind it
  // the heads' becomes one of the sequence

  static constexpr size_t kSequence = 2;  // of (batch, heads, sequence, head size)

  // Whether the sequence of some operand is split over cp; then heads are offered in its stead.
  bool goes_by_heads(const Node& node, const ShardingRule& rule, std::vector<Offer>& offers) {
    const Axis cp = *hints_.sequence_axis;
    const auto splits_cp = [&](TensorId id) { return sharding_of(id).splits(cp); };
    if (std::ranges::none_of(node.inputs, splits_cp)) return false;
    std::erase_if(offers, [cp](const Offer& offer) { return offer.split.piece.axes == std::vector<Axis>{cp}; });
    const auto heads = static_cast<size_t>(*rule.heads);
    int64_t left = rule.factors[heads].size;  // of which each part of the others' has so many
    for (const Offer& other : offers)
      if (other.split.at == heads) left = std::min(left, other.split.inner);
    const int64_t ranks = mesh_.size(cp);
    if (left % ranks != 0)
      throw UnfitContext(
          str("context = \"heads\" splits the heads of attention (in '{}'), and there are {}{}, which cp = {} does not "
              "divide: take a cp of {}, or context = \"auto\"",
              node.source.module, left, left == rule.factors[heads].size ? "" : " on a rank along tp", ranks,
              nearest_divisors(left, ranks)));
    offers.push_back({{heads, {ranks, {cp}}, left / ranks}, Origin::kBatch, preference(Origin::kBatch, false), 0, 0});
    return true;
  }

  // A result of attention by heads, split along the sequence as the operand of its sequence was.
  TensorId back_to_sequence(const Node& node, TensorId old, TensorId now) {
    const Axis cp = *hints_.sequence_axis;
    const Shape& shape = old_.shape(old);
    std::vector<Split> splits = splits_of(b_.sharding(now), shape);
    std::erase_if(splits, [cp](const Split& split) { return split.piece.axes == std::vector<Axis>{cp}; });
    for (TensorId input : node.inputs) {
      if (old_.shape(input).size() < shape.size() || old_.shape(input)[kSequence] != shape[kSequence]) continue;
      const std::vector<Split> lies = splits_of(sharding_of(input), old_.shape(input));
      const auto along = std::ranges::find_if(lies, [cp](const Split& split) {
        return split.at == kSequence && split.piece.axes == std::vector<Axis>{cp};
      });
      if (along == lies.end()) continue;
      add_beside(splits, *along, shape);
      break;
    }
    return b_.reshard(now, {pieces_of(splits, shape, mesh_), b_.sharding(now).partial});
  }

  // ---- attention around a ring: its operands stay split along the sequence, keys and values too
  // (passes/partition/ring_attention.h)

  // Whether queries and keys are split over cp; then nothing else is.
  bool goes_around_ring(const Node& node, std::vector<Offer>& offers) {
    const Axis cp = *hints_.sequence_axis;
    const size_t q = attention_places(node).q;
    for (size_t i : {q, q + 1}) {
      const auto split = sequence_split(node.inputs[i]);
      if (!split) return false;
      const int64_t tokens = old_.shape(node.inputs[i])[kSequence], ranks = mesh_.size(cp);
      const bool turns = !node.attrs.get<bool>("causal") || split->piece.zigzags;
      if (!is_even(split->piece, mesh_) || !turns)
        throw UnfitContext(str(
            "context = \"ring\" takes tokens that 2 x cp = {} divides, and attention (in '{}') is over {}: pad rows to "
            "{}, or take context = \"auto\"",
            2 * ranks, node.source.module, tokens, (tokens / (2 * ranks) + 1) * 2 * ranks));
    }
    std::erase_if(offers, [cp](const Offer& offer) { return offer.split.piece.axes == std::vector<Axis>{cp}; });
    return true;
  }
  // How a tensor of (batch, heads, sequence, head size) is split along its sequence over cp.
  std::optional<Split> sequence_split(TensorId old) {
    for (const Split& split : splits_of(sharding_of(old), old_.shape(old)))
      if (split.at == kSequence && split.piece.axes == std::vector<Axis>{*hints_.sequence_axis}) return split;
    return std::nullopt;
  }
  // `sharding` of a tensor of such a call, with its sequence split as that of the queries or of the keys is.
  void split_sequence(Sharding& sharding, const Node& node, TensorId old, bool is_of_keys, size_t dim) {
    const size_t q = attention_places(node).q;
    Split split = *sequence_split(node.inputs[is_of_keys ? q + 1 : q]);
    split.at = dim;
    const Shape& shape = old_.shape(old);
    std::vector<Split> splits = splits_of(sharding, shape);
    add_beside(splits, split, shape);
    sharding.dims = pieces_of(splits, shape, mesh_);
    INTERNAL_CHECK(sharding.splits(*hints_.sequence_axis), "a {} of attention around a ring lies as {}",
                   to_text(old_.type(old)), to_text(sharding, shape, mesh_));
  }
  void split_sequence_of_operand(Sharding& sharding, const Node& node, size_t i) {
    const auto [is_backward, q, mask] = attention_places(node);
    const Shape& shape = old_.shape(node.inputs[i]);
    if (i != mask) return split_sequence(sharding, node, node.inputs[i], i == q + 1 || i == q + 2, kSequence);
    // A mask may be the same for all queries. It has all keys.
    if (shape.size() >= 2 && shape[shape.size() - 2] == old_.shape(node.inputs[q])[kSequence])
      split_sequence(sharding, node, node.inputs[i], false, shape.size() - 2);
  }

  // Of an op of several results, one that is partial and has the shape of an operand which was gathered for it is that
  // one's gradient: whole, it is to lie as that did. It stays so through what the parts pass.
  void note_operand(const Node& node, const ShardingRule& rule, size_t k) {
    const TensorId result = now_[node.outputs[k].index()];
    for (const Partial& part : b_.sharding(result).partial)
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const Sharding& before = sharding_of(node.inputs[i]);
        const bool is_alike = node.outputs.size() > 1 && old_.type(node.inputs[i]) == old_.type(node.outputs[k]);
        if (is_alike && before.splits(part.axis)) as_operand_.try_emplace(result, before);
        const auto known = as_operand_.find(now_[node.inputs[i].index()]);
        if (known == as_operand_.end() || !before.partial_over(part.axis)) continue;
        const FactorSplits found = onto_factors(known->second, old_.shape(node.inputs[i]), rule.operands[i], rule);
        as_operand_.try_emplace(result,
                                from_factors(found.splits, old_.shape(node.outputs[k]), rule.results[k], rule, mesh_));
      }
  }

  static ReduceOp reduction_of(Factor::Kind kind) {
    INTERNAL_CHECK(kind == Factor::Kind::kSum || kind == Factor::Kind::kMax || kind == Factor::Kind::kMin,
                   "a parallel factor that a result has not");
    return kind == Factor::Kind::kSum ? ReduceOp::kSum : kind == Factor::Kind::kMax ? ReduceOp::kMax : ReduceOp::kMin;
  }

  std::vector<Offer> offers_of(const Node& node, const ShardingRule& rule, const std::vector<Axis>& passing) {
    std::vector<Offer> offers;
    const bool is_product = has(node, Trait::kContraction);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorId old = node.inputs[i];
      Sharding lies = sharding_of(old);
      Origins origins = b_.origins(now_[old.index()]);
      for (Axis axis : passing) lies.clear_partial(axis);
      if (!lies.partial.empty()) {
        const std::vector<Partial> parts = lies.partial;
        lies = settled(old, lies);
        for (const Partial& part : parts)
          origins[part.axis] = seeds_.wanted[old.index()] ? Origin::kState : Origin::kBatch;
      }
      for (const Split& split : onto_factors(lies, old_.shape(old), rule.operands[i], rule).splits) {
        const Axis axis = split.piece.axes[0];
        const Origin origin = origins[axis];
        // A matmul goes by its weight: that is where it was sought, or a rule.
        const bool is_weight =
            is_model_axis_[axis] && origin == Origin::kParameter && is_product && chains().parameter_of(old);
        const int preferred = preference(origin, is_model_axis_[axis]) + (is_weight ? 1 : 0);
        const auto same = std::ranges::find(offers, split, &Offer::split);
        if (same == offers.end()) {
          offers.push_back({split, origin, preferred, bytes_of(old_.type(old)), i});
          continue;
        }
        same->bytes += bytes_of(old_.type(old));
        if (preferred > same->preferred) same->origin = origin, same->preferred = preferred;
      }
    }
    return offers;
  }

  // A call that nobody says how to split would need the whole batch on every rank.
  void check_batch(const Node& node, const std::vector<Offer>& chosen) {
    for (TensorId input : node.inputs) {
      const Origins& origins = b_.origins(now_[input.index()]);
      for (Axis axis = 0; axis < mesh_.axes.size(); ++axis) {
        if (!sharding_of(input).splits(axis) || origins[axis] != Origin::kBatch || is_model_axis_[axis]) continue;
        const bool is_taken = std::ranges::any_of(chosen, [axis](const Offer& offer) {
          return std::ranges::find(offer.split.piece.axes, axis) != offer.split.piece.axes.end();
        });
        USER_CHECK(is_taken,
                   "{} (in '{}') cannot be split along {}, as the batch is: nothing says how; declare a rule for it "
                   "(stepc.op_rule)",
                   node.op, node.source.module, mesh_.axes[axis].name);
      }
    }
  }

  // Tokens of the batch that choose from a parameter's rows: their last dimension is the sequence.
  void offer_sequence(const Node& node, const ShardingRule& rule, std::vector<Offer>& offers) {
    const bool is_simple = !node.aten && (is_view(node) || has(node, Trait::kElementwise));
    for (TensorId input : node.inputs)
      if (is_simple && is_of_batch_[input.index()]) is_of_batch_[node.outputs[0].index()] = true;
    if (!rule.indexed || rule.indexed->values ||
        !chains().parameter_of(node.inputs[op_def(node.op).index_use->indexed]))
      return;
    const size_t tokens = rule.indexed->indices;
    if (!is_of_batch_[node.inputs[tokens].index()] || rule.operands[tokens].empty()) return;
    tokens_ = std::max(tokens_, element_count(old_.shape(node.inputs[tokens])));
    for (int factor : rule.operands[tokens].back()) {
      const int64_t size = rule.factors[static_cast<size_t>(factor)].size;
      const int64_t ranks = mesh_.size(*hints_.sequence_axis);
      if (size < ranks) continue;
      const bool divides = size % ranks == 0, zigzags = hints_.zigzags && size % (2 * ranks) == 0;
      const Piece piece = {divides ? ranks : size, {*hints_.sequence_axis}, zigzags};
      const Split split = {static_cast<size_t>(factor), piece, !divides ? 1 : size / ranks / (zigzags ? 2 : 1)};
      offers.push_back({split, Origin::kBatch, preference(Origin::kBatch, false), 0, tokens});
    }
  }

  // Those that can stand together, the preferred first.
  std::vector<Offer> choose(const ShardingRule& rule, std::vector<Offer> offers, const std::vector<Axis>& passing) {
    std::ranges::stable_sort(offers, [](const Offer& a, const Offer& b) {
      return a.preferred != b.preferred ? a.preferred > b.preferred : a.bytes > b.bytes;
    });
    std::vector<Offer> chosen;
    for (const Offer& offer : offers)
      if (can_take(rule, chosen, offer.split, passing)) chosen.push_back(offer);
    return chosen;
  }

  static bool can_take(const ShardingRule& rule, const std::vector<Offer>& chosen, const Split& split,
                       const std::vector<Axis>& passing) {
    std::vector<Split> splits = {split};
    for (Axis axis : split.piece.axes) {
      if (std::ranges::find(passing, axis) != passing.end()) return false;
      for (const Offer& other : chosen)
        if (std::ranges::find(other.split.piece.axes, axis) != other.split.piece.axes.end()) return false;
    }
    for (const Offer& other : chosen) splits.push_back(other.split);
    const Factor& factor = rule.factors[split.at];
    if (!fit_together(splits, split.at, factor.size)) return false;
    // Places that indices choose are one range a rank, along one piece.
    if (rule.indexed && static_cast<size_t>(rule.indexed->factor) == split.at) {
      if (split.piece.zigzags || split.piece.extent * split.inner != factor.size) return false;
      for (const Offer& other : chosen)
        if (other.split.at == split.at) return false;
    }
    return true;
  }

  std::string reason(const std::vector<Offer>& chosen, const std::vector<Axis>& passing, const Node& node) {
    constexpr std::string_view kOrigins[] = {"", "the batch", "optimizer state", "a parameter"};
    std::vector<std::string> parts;
    for (const Offer& offer : chosen)
      for (Axis axis : offer.split.piece.axes)
        parts.push_back(str("{} from operand {}, after {}", mesh_.axes[axis].name, offer.operand,
                            kOrigins[static_cast<size_t>(offer.origin)]));
    for (Axis axis : passing) parts.push_back(str("{} stays a sum", mesh_.axes[axis].name));
    return parts.empty() ? node.inputs.empty() ? "made of nothing" : "no operand is split"
                         : str("{}", fmt::join(parts, "; "));
  }

  // ---- what leaves the step

  void leave(GraphOutput output) {
    b_.at({Phase::kUpdate, ""});
    if (output.tensor.valid()) {
      // What a step returns it returns on every rank, as one device does.
      const Sharding to = output.kind == GraphOutput::Kind::kUpdate ? seeds_.inputs[output.input].sharding
                          : output.kind == GraphOutput::Kind::kReturn
                              ? Sharding::whole(old_.shape(output.tensor).size())
                              : settled(output.tensor, sharding_of(output.tensor));
      output.tensor = b_.reshard(now_[output.tensor.index()], to, false, sent_as(output.tensor, to));
    }
    b_.add_output(std::move(output));
  }

  // ---- where tensor parallelism is sought

  [[nodiscard]] bool seeks(const Node& node) const {
    return hints_.found != nullptr && node.source.phase == Phase::kForward;
  }
  // A weight whose use splits nothing yet: a matmul's columns, the rows that indices choose from. What comes split from
  // such columns wins by its bytes, but where they are heads: attention is split, whatever lies in front of it.
  void seek(const Node& node, const ShardingRule& rule, std::vector<Offer>& offers) {
    if (const auto found = tensor_parallel_split(old_, node, rule, *tp_, mesh_.size(*tp_), chains()))
      offers.push_back(
          {found->split, Origin::kParameter, preference(Origin::kParameter, true) + (found->is_cut ? 1 : 0), 0, 0});
  }
  void note_parameters(const Node& node, const ShardingRule& rule, const std::vector<Split>& splits) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Sharding used = from_factors(splits, old_.shape(node.inputs[i]), rule.operands[i], rule, mesh_);
      if (!used.splits(*tp_)) continue;
      if (const auto seed = chains().seed_of(node.inputs[i], used, *tp_, mesh_))
        if (!(*hints_.found)[seed->first]) (*hints_.found)[seed->first] = seed->second;
    }
  }
  Chains& chains() {
    if (!chains_) chains_.emplace(old_);
    return *chains_;
  }

  const Graph& old_;
  const Strategy& strategy_;
  const Mesh& mesh_;
  Seeds seeds_;
  Hints hints_;
  std::optional<Axis> tp_;
  std::array<bool, std::tuple_size_v<Origins>> reduced_each_{};
  int64_t tokens_ = 0;
  std::array<bool, std::tuple_size_v<Origins>> is_model_axis_{}, is_data_axis_{};
  std::vector<uint32_t> uses_;
  ShardedBuilder b_;
  std::vector<TensorId> now_;                // by old tensor
  std::vector<bool> is_of_batch_;            // by old tensor: the batch, but for views and arithmetic on it
  std::vector<bool> is_own_;                 // by old tensor: each rank along the data axes has a value of its own
  std::map<TensorId, Sharding> as_operand_;  // by new tensor that is partial: how an operand of its shape lay
  std::optional<Chains> chains_;
};

// Queries that see keys by their places cannot be split as they stand; where the sequence runs through a step does not
// depend on what they see.
Graph without_causes(Graph graph) {
  for (Node& node : graph.nodes)
    if (!node.aten && node.attrs.find("causal") != nullptr) node.attrs.set("causal", false);
  return graph;
}

}  // namespace

ShardedStep propagate_shardings(const Graph& step, const Strategy& strategy) {
  check(strategy);
  INTERNAL_CHECK(strategy.context != Context::kByPrice, "nobody has chosen how attention sees a split sequence");
  const Graph graph = average_what_leaves(prepare_for_ranks(step, strategy), strategy);
  const std::optional<Axis> tp = strategy.mesh.find("tp");
  std::vector<std::optional<Sharding>> tensor_parallel(graph.inputs.size());
  const std::optional<Axis> cp = strategy.mesh.find("cp");
  std::map<Axis, std::vector<Sharding>> sequence;
  Hints hints;
  hints.sequence = &sequence;
  const Graph uncut = without_causes(graph);
  for (const auto& axis : {strategy.sequence_parallel ? tp : std::nullopt, cp}) {
    if (!axis) continue;
    const bool zigzags = axis == cp && strategy.context == Context::kRing;
    Propagation along(uncut, strategy, no_seeds(graph), {.sequence_axis = axis, .zigzags = zigzags});
    along.visit_nodes();
    sequence[*axis] = along.shardings();
    hints.tokens = along.tokens();
  }
  if (tp) {
    Hints seeking = hints;
    seeking.found = &tensor_parallel;
    Propagation(graph, strategy, no_seeds(graph), seeking).visit_nodes();
  }
  hints.sequence_axis = cp;
  hints.by_heads = cp && strategy.context == Context::kHeads;
  hints.around_ring = hints.zigzags = cp && strategy.context == Context::kRing;
  return Propagation(graph, strategy, seeds_of(graph, strategy, tensor_parallel), hints).run();
}

ShardedStep propagate_shardings(const Graph& graph, const Mesh& mesh, const std::vector<Sharding>& inputs) {
  Seeds seeds = no_seeds(graph);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_batch = graph.inputs[i].kind == InputKind::kBatch;
    seeds.inputs[i] = {inputs[i], is_batch ? Origin::kBatch : Origin::kParameter};
  }
  const Strategy strategy = {mesh};
  return Propagation(graph, strategy, std::move(seeds), {}).run();
}

}  // namespace stepc
