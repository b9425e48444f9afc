#include "passes/partition/ring_attention.h"

#include <cmath>
#include <optional>
#include <utility>

#include "ops/op_def.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

constexpr size_t kSequence = 2;  // of (batch, heads, sequence, head size), and of what has a number a query
// What a mask adds to hide a key. Of a part of the keys a query may see none; with -inf that would make no number.
constexpr double kHidden = -1e30;

class Ring {
 public:
  Ring(GraphBuilder& b, RankBuilder& ranks, const Graph& whole, const Node& node, Axis axis,
       const std::vector<TensorId>& operands)
      : b_(b), ranks_(ranks), node_(node), places_(attention_places(node)), axis_(axis) {
    const size_t q = places_.q;
    const TensorId keys = node.inputs[q + 1];
    key_tokens_ = whole.shape(keys)[kSequence];
    key_pieces_ = whole.tensors[keys.index()].sharding->dims[kSequence];
    own_ = {{}, operands[q + 1], operands[q + 2]};
    for (size_t i = 0; i < places_.mask; ++i)
      if (i != q + 1 && i != q + 2) own_.of_queries.push_back(operands[i]);
    if (operands.size() > places_.mask) mask_ = operands[places_.mask];
  }

  std::vector<TensorId> forward() {
    const int64_t n = ranks();
    if (!is_causal()) {
      Merged all = merged(call(own_, mask(0, std::nullopt), false));
      for (int64_t s = 1; s < n; ++s) merge(all, merged(call(visited(own_, s), mask(s, std::nullopt), false)));
      return {b_.cast(all.out, dtype()), all.sums};
    }
    const Merged own = merged(call(own_, mask(0, std::nullopt), true));
    Merged early = {half(own.out, 0), half(own.sums, 0)}, late = {half(own.out, 1), half(own.sums, 1)};
    for (int64_t s = 1; s < n; ++s) {
      const Squares two = squares(s);
      merge(late, merged(call(two.sure, two.sure_mask, false)));
      const Merged other = merged(call(two.other, two.other_mask, false));
      merge(early, {other.out, ranks_.where(two.is_earlier, other.sums, -INFINITY)});
      merge(late, {other.out, ranks_.where(b_.add("logical_not", {two.is_earlier}), other.sums, -INFINITY)});
    }
    return {b_.cast(joined(early.out, late.out), dtype()), joined(early.sums, late.sums)};
  }

  std::vector<TensorId> backward() {
    const int64_t n = ranks();
    const std::vector<TensorId> own = call(own_, mask(0, std::nullopt), is_causal());
    std::vector<TensorId> sums;
    for (TensorId gradient : own) sums.push_back(b_.cast(gradient, wide(dtype())));
    for (int64_t s = 1; s < n; ++s) {
      std::vector<TensorId> part =
          is_causal() ? of_squares(squares(s)) : call(visited(own_, s), mask(s, std::nullopt), false);
      for (size_t i = 1; i < 3; ++i)  // home to where the keys and values came from
        part[i] = rotated(b_.cast(part[i], dtype()), n - s);
      for (size_t i = 0; i < 3; ++i) sums[i] = b_.add("add", {sums[i], b_.cast(part[i], wide(dtype()))});
    }
    for (TensorId& sum : sums) sum = b_.cast(sum, dtype());
    return sums;
  }

 private:
  // What one call takes: queries (backward also their gradient, result and sums), keys and values.
  struct Operands {
    std::vector<TensorId> of_queries;
    TensorId k, v;
  };
  // A result, and the log of the sum of its weights.
  struct Merged {
    TensorId out, sums;
  };
  // Causal attention of this rank's queries to another rank's keys: late queries see the early keys for sure.
  struct Squares {
    TensorId is_earlier;  // whether that rank is
    Operands sure, other;
    std::optional<TensorId> sure_mask, other_mask;
  };

  [[nodiscard]] int64_t ranks() { return b_.graph().mesh.size(axis_); }
  [[nodiscard]] bool is_causal() const { return node_.attrs.get<bool>("causal"); }
  [[nodiscard]] DType dtype() { return b_.dtype(own_.k); }
  TensorId number(int64_t value) { return b_.full(static_cast<double>(value), DType::kI64); }

  // ---- what goes around

  // What the rank `by` places before this one holds of x. What views of it would have to be copied is sent before them.
  TensorId rotated(TensorId x, int64_t by) {
    const Node* producer = b_.graph().producer(x);
    if (producer != nullptr && is_view(*producer)) {
      const Node view = *producer;
      if (element_count(b_.shape(view.inputs[0])) <= element_count(b_.shape(x)))
        return b_.add(view.op, {rotated(view.inputs[0], by)}, view.attrs);
    }
    Attrs attrs = ranks_.group({axis_});
    attrs.set("by", by);
    return b_.add("rotate", {x}, attrs);
  }
  Operands visited(const Operands& own, int64_t s) { return {own.of_queries, rotated(own.k, s), rotated(own.v, s)}; }

  // ---- calls

  std::vector<TensorId> call(const Operands& on, std::optional<TensorId> mask, bool causal) {
    std::vector<TensorId> inputs = on.of_queries;
    inputs.insert(inputs.begin() + static_cast<ptrdiff_t>(places_.q) + 1, {on.k, on.v});
    if (mask) inputs.push_back(*mask);
    Attrs attrs = node_.attrs;
    attrs.set("causal", causal);
    return b_.add_all(node_.op, inputs, attrs);
  }
  Merged merged(const std::vector<TensorId>& results) {
    return {b_.cast(results[0], b_.dtype(results[1])), results[1]};
  }
  void merge(Merged& into, const Merged& part) {
    const TensorId top = b_.add("maximum", {into.sums, part.sums});
    const TensorId a = b_.add("exp", {b_.add("sub", {into.sums, top})});
    const TensorId c = b_.add("exp", {b_.add("sub", {part.sums, top})});
    const TensorId sum = b_.add("add", {a, c});
    const auto weighted = [&](TensorId out, TensorId weight) {
      Shape column = b_.shape(weight);
      column.push_back(1);
      return b_.add("mul", {out, b_.reshape(b_.add("div", {weight, sum}), column)});
    };
    into.out = b_.add("add", {weighted(into.out, a), weighted(part.out, c)});
    into.sums = b_.add("add", {top, b_.add("log", {sum})});
  }

  // The gradients of both squares, as those of all queries, keys and values.
  std::vector<TensorId> of_squares(const Squares& two) {
    const std::vector<TensorId> sure = call(two.sure, two.sure_mask, false);
    const std::vector<TensorId> other = call(two.other, two.other_mask, false);
    std::vector<TensorId> out;
    for (size_t i = 0; i < 3; ++i) {
      const TensorId a = b_.cast(sure[i], wide(dtype())), c = b_.cast(other[i], wide(dtype()));
      const TensorId if_earlier = ranks_.where(two.is_earlier, c, 0);
      const TensorId if_later = ranks_.where(b_.add("logical_not", {two.is_earlier}), c, 0);
      // Of late queries, and of early keys and values, are those for sure.
      out.push_back(i == 0 ? joined(if_earlier, b_.add("add", {a, if_later}))
                           : joined(b_.add("add", {a, if_earlier}), if_later));
    }
    return out;
  }

  // ---- halves

  TensorId half(TensorId x, int64_t which) {
    Shape shape = b_.shape(x), starts(shape.size(), 0);
    shape[kSequence] /= 2;
    starts[kSequence] = which * shape[kSequence];
    return b_.slice(x, starts, shape, Shape(shape.size(), 1));
  }
  TensorId joined(TensorId early, TensorId late) {
    return b_.add("concat", {early, late}, {{"dim", static_cast<int64_t>(kSequence)}});
  }
  Squares squares(int64_t s) {
    const Operands all = visited(own_, s);
    Squares two{b_.add("le", {number(s), ranks_.coordinate(axis_)}), {{}, half(all.k, 0), half(all.v, 0)}, {}, {}, {}};
    const auto either = [&](TensorId if_earlier, TensorId if_later) {
      return b_.add("where", {two.is_earlier, if_earlier, if_later});
    };
    for (TensorId one : all.of_queries) {
      two.sure.of_queries.push_back(half(one, 1));
      two.other.of_queries.push_back(either(half(one, 0), two.sure.of_queries.back()));
    }
    two.other.k = either(two.sure.k, half(all.k, 1));
    two.other.v = either(two.sure.v, half(all.v, 1));
    if (mask_) {
      two.sure_mask = mask(s, std::pair<int64_t, int64_t>(1, 0));
      two.other_mask = either(*mask(s, std::pair<int64_t, int64_t>(0, 0)), *mask(s, std::pair<int64_t, int64_t>(1, 1)));
    }
    return two;
  }

  // ---- the mask, whose rows are this rank's queries and whose columns are all keys

  // For the keys of the rank `s` places before this one; of halves of queries and keys, if given.
  std::optional<TensorId> mask(int64_t s, std::optional<std::pair<int64_t, int64_t>> halves) {
    if (!mask_) return std::nullopt;
    TensorId part = *mask_;
    const auto columns = static_cast<int64_t>(b_.shape(part).size()) - 1;
    const auto rows = static_cast<size_t>(columns) - 1;
    const int64_t queries = b_.shape(own_.of_queries[0])[kSequence];
    if (halves && columns > 0 && b_.shape(part)[rows] == queries) {
      Shape shape = b_.shape(part), starts(shape.size(), 0);
      shape[rows] /= 2;
      starts[rows] = halves->first * shape[rows];
      part = b_.slice(part, starts, shape, Shape(shape.size(), 1));
    }
    if (b_.shape(part).back() == key_tokens_) {
      TensorId at = places_of_keys(s);
      if (halves) {
        const int64_t count = b_.shape(at)[0] / 2;
        at = b_.slice(at, {halves->second * count}, {count}, {1});
      }
      part = b_.add("take", {part, at}, {{"dim", columns}});
    }
    const DType type = b_.dtype(part);
    part = b_.cast(part, is_floating(type) ? wide(type) : DType::kF32);
    return b_.add("maximum", {part, b_.full(kHidden, b_.dtype(part))});
  }
  TensorId places_of_keys(int64_t s) {
    if (s == 0) return ranks_.places(key_pieces_, key_tokens_);
    const TensorId own = ranks_.coordinate(axis_);
    const TensorId before = b_.add("sub", {own, number(s)});
    const TensorId around = b_.add("add", {before, number(ranks())});
    const TensorId at = b_.add("where", {b_.add("le", {number(s), own}), before, around});
    return ranks_.places_at(key_pieces_, key_tokens_, axis_, at);
  }

  GraphBuilder& b_;
  RankBuilder& ranks_;
  const Node& node_;
  AttentionPlaces places_;
  Axis axis_;
  int64_t key_tokens_ = 0;
  Pieces key_pieces_;
  Operands own_;
  std::optional<TensorId> mask_;
};

}  // namespace

std::optional<Axis> ring_axis(const Graph& whole, const Node& node) {
  if (!attends(node)) return std::nullopt;
  const TensorId keys = node.inputs[attention_places(node).q + 1];
  for (const Piece& piece : whole.tensors[keys.index()].sharding->dims[kSequence])
    if (!piece.axes.empty()) return piece.axes[0];
  return std::nullopt;
}

std::vector<TensorId> around_ring(GraphBuilder& b, RankBuilder& ranks, const Graph& whole, const Node& node, Axis axis,
                                  const std::vector<TensorId>& operands) {
  Ring ring(b, ranks, whole, node, axis, operands);
  return attention_places(node).is_backward ? ring.backward() : ring.forward();
}

}  // namespace stepc
