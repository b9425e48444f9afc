#include "passes/rewrite/find_documents.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/attention_operands.h"
#include "ops/op_def.h"
#include "passes/rewrite/dead_code.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

// Whole numbers of queries and of keys, a row or as many as there are; both with further dimensions of one element.
struct Sides {
  TensorId queries, keys;
  auto operator<=>(const Sides&) const = default;
};
struct Terms {
  std::optional<Sides> documents, places;
};

// What an elementwise node does with its operands, where that is one primitive.
std::optional<Primitive> primitive_of(const Node& node) {
  if (!has(node, Trait::kElementwise)) return std::nullopt;
  const ScalarExpr expr = scalar_expr(op_def(node.op).body);
  const auto operands = static_cast<size_t>(operand_count(expr.steps.back().primitive));
  if (expr.steps.size() != operands + 1) return std::nullopt;
  for (size_t i = 0; i < operands; ++i) {
    const int step = expr.steps.back().operands[i];
    if (expr.steps[static_cast<size_t>(step)].primitive != Primitive::kArgument ||
        expr.steps[static_cast<size_t>(step)].operands[0] != static_cast<int>(i))
      return std::nullopt;
  }
  return expr.steps.back().primitive;
}

// A tensor that a mask is made of, and which of the mask's four dimensions each of its own is. Of those of one element
// it does not matter: they are as if in front.
struct Placed {
  TensorId id;
  std::vector<size_t> dims;
};

// A mask of (batch, heads, queries, keys), or of fewer dimensions.
class MaskReader {
 public:
  MaskReader(const Graph& graph, int64_t queries, int64_t keys) : graph_(graph), queries_(queries), keys_(keys) {}

  // nullopt: the mask says something else, or more.
  std::optional<Terms> read(TensorId mask) {
    constexpr size_t kDims = 4;
    Placed placed{mask, {}};
    const size_t rank = graph_.shape(mask).size();
    if (rank > kDims) return std::nullopt;
    for (size_t d = kDims - rank; d < kDims; ++d) placed.dims.push_back(d);
    const Node* node = beneath_repeats(placed);
    if (node == nullptr || primitive_of(*node) != Primitive::kSelect) return std::nullopt;
    const std::optional<double> seen = value_of(operand(placed, *node, 1)),
                                hidden = value_of(operand(placed, *node, 2));
    const bool is_plain = seen == 0.0 && hidden == -INFINITY;
    const bool is_opposite = seen == -INFINITY && hidden == 0.0;
    if ((!is_plain && !is_opposite) || !collect(operand(placed, *node, 0), is_opposite) || !terms_.documents)
      return std::nullopt;
    return terms_;
  }

 private:
  // What makes a tensor, but for views that repeat it or add dimensions of one element.
  const Node* beneath_repeats(Placed& placed) const {
    const Node* node = graph_.producer(placed.id);
    while (node != nullptr) {
      if (has(*node, Trait::kBroadcast))
        placed = operand(placed, *node, 0);
      else if (const auto inner = without_dimensions(placed, *node))
        placed = *inner;
      else
        break;
      node = graph_.producer(placed.id);
    }
    return node;
  }
  // What a node reads, as its last dimensions.
  [[nodiscard]] Placed operand(const Placed& placed, const Node& node, size_t input) const {
    const TensorId id = node.inputs[input];
    const auto rank = static_cast<ptrdiff_t>(graph_.shape(id).size());
    return {id, {placed.dims.end() - rank, placed.dims.end()}};
  }
  // What the node gives dimensions of one element or takes them from; nullopt: it does something else.
  [[nodiscard]] std::optional<Placed> without_dimensions(const Placed& placed, const Node& node) const {
    if (!has(node, Trait::kSameBytes) || graph_.type(node.inputs[0]).dtype != graph_.type(placed.id).dtype) return {};
    const Shape &from = graph_.shape(node.inputs[0]), &to = graph_.shape(placed.id);
    Placed inner{node.inputs[0], std::vector<size_t>(from.size())};
    size_t t = 0;
    for (size_t f = 0; f < from.size(); ++f) {
      if (from[f] == 1) continue;
      while (t < to.size() && to[t] == 1) ++t;
      if (t == to.size() || to[t] != from[f]) return {};
      inner.dims[f] = placed.dims[t++];
    }
    const auto rest = to.begin() + static_cast<ptrdiff_t>(t);
    if (std::ranges::any_of(rest, to.end(), [](int64_t size) { return size != 1; })) return {};
    return inner;
  }
  [[nodiscard]] std::optional<double> value_of(Placed placed) const {
    const Node* node = beneath_repeats(placed);
    if (node == nullptr || !has(*node, Trait::kSplat)) return std::nullopt;
    return node->attrs.number("value");
  }

  // All that a condition, or its opposite, demands; false: something that is neither documents nor places.
  // NOLINTNEXTLINE(misc-no-recursion): as deep as the program wrote it
  bool collect(Placed condition, bool negated) {
    const Node* node = beneath_repeats(condition);
    if (node == nullptr) return false;
    if (const auto value = value_of(condition)) return (*value != 0) != negated;
    const std::optional<Primitive> primitive = primitive_of(*node);
    const auto input_of = [&](size_t i) { return operand(condition, *node, i); };
    if (primitive == Primitive::kNot) return collect(input_of(0), !negated);
    if (negated) return false;
    if (primitive == Primitive::kAnd || primitive == Primitive::kBitAnd)
      return collect(input_of(0), false) && collect(input_of(1), false);
    if (primitive == Primitive::kEq)
      return set(terms_.documents, input_of(0), input_of(1)) || set(terms_.documents, input_of(1), input_of(0));
    return primitive == Primitive::kLe && set(terms_.places, input_of(1), input_of(0));
  }
  bool set(std::optional<Sides>& sides, const Placed& queries, const Placed& keys) const {
    if (!are_numbers(queries, 2, queries_) || !are_numbers(keys, 3, keys_)) return false;
    if (sides && *sides != Sides{queries.id, keys.id}) return false;
    sides = {queries.id, keys.id};
    return true;
  }
  // One for each token of a row, along one dimension.
  [[nodiscard]] bool are_numbers(const Placed& placed, size_t dim, int64_t tokens) const {
    const Shape& shape = graph_.shape(placed.id);
    const DType dtype = graph_.type(placed.id).dtype;
    if (is_floating(dtype) || dtype == DType::kBool || tokens < 2) return false;
    bool has_tokens = false;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const bool is_token = placed.dims[d] == dim && shape[d] == tokens;
      if (!is_token && placed.dims[d] != 0) return false;
      has_tokens |= is_token;
    }
    return has_tokens;
  }

  const Graph& graph_;
  int64_t queries_, keys_;
  Terms terms_;
};

class FindDocuments {
 public:
  FindDocuments(const Graph& graph, bool is_for_gpu) : old_(graph), r_(graph), is_for_gpu_(is_for_gpu) {}

  Graph run() {
    for (const Node& node : old_.nodes)
      if (!attends(node) || !replaced(node)) r_.keep(node);
    if (rows_.empty()) return old_;
    Graph graph = r_.finish();
    if (is_for_gpu_) add_guards(graph);
    return dead_code(std::move(graph));
  }

 private:
  bool replaced(const Node& node) {
    const AttentionPlaces at = attention_places(node);
    if (!at.has_mask(node.inputs.size())) return false;
    const Shape& q = old_.shape(node.inputs[at.q]);
    const int64_t keys = old_.shape(node.inputs[at.q + 1])[2];
    if (is_for_gpu_ && q[2] != keys) return false;
    const std::optional<Terms> found = MaskReader(old_, q[2], keys).read(node.inputs[at.mask]);
    if (!found) return false;
    r_.at(node);
    std::vector<TensorId> inputs = r_.inputs_of(node);
    inputs.resize(at.mask);
    append(inputs, *found->documents, q[2], keys);
    Attrs attrs = node.attrs;
    const bool counts = found->places && q[2] == keys && counts_tokens(*found->places);
    if (counts) attrs.set("causal", true);
    if (found->places && !counts) append(inputs, *found->places, q[2], keys);
    r_.replace(node.outputs, r_.b().add_all(node.op, inputs, attrs));
    return true;
  }

  // Whether both sides are 0, 1, 2 ...
  [[nodiscard]] bool counts_tokens(const Sides& places) const {
    const auto counts = [&](TensorId id) {
      const Node* node = old_.producer(id);
      while (node != nullptr && is_view(*node) && has(*node, Trait::kSameBytes)) node = old_.producer(node->inputs[0]);
      if (node == nullptr || !has(*node, Trait::kConstant)) return false;
      const AttrValue* step = node->attrs.find("step");
      return step != nullptr && node->attrs.number("step") == 1 && node->attrs.number("start") == 0 &&
             old_.shape(node->outputs[0]).size() == 1;
    };
    return counts(places.queries) && counts(places.keys);
  }

  // As (batch or 1, tokens), once for all layers.
  void append(std::vector<TensorId>& inputs, const Sides& sides, int64_t queries, int64_t keys) {
    auto [row, is_new] = rows_.try_emplace(sides);
    if (is_new)
      for (const auto& [id, tokens] : {std::pair(sides.queries, queries), {sides.keys, keys}}) {
        const TensorId whole = r_.b().cast(r_[id], DType::kI64);
        row->second.push_back(r_.b().reshape(whole, {element_count(old_.shape(id)) / tokens, tokens}));
      }
    inputs.insert(inputs.end(), row->second.begin(), row->second.end());
  }

  // ---- on a GPU

  // Of documents: queries are keys, and numbers never fall. Places rise wherever the document stays.
  static void add_guards(Graph& graph) {
    std::map<std::vector<TensorId>, bool> seen;
    std::vector<std::vector<TensorId>> all;
    for (const Node& node : graph.nodes) {
      if (!attends(node)) continue;
      const AttentionPlaces at = attention_places(node);
      if (!at.has_documents(node.inputs.size())) continue;
      std::vector<TensorId> numbers(node.inputs.begin() + static_cast<ptrdiff_t>(at.mask), node.inputs.end());
      if (seen.emplace(numbers, true).second) all.push_back(std::move(numbers));
    }
    GraphBuilder b(std::move(graph));
    b.set_source({Phase::kForward, ""});
    for (const std::vector<TensorId>& numbers : all) {
      GraphOutput guard;
      guard.kind = GraphOutput::Kind::kGuard;
      guard.tensor = lie_in_order(b, numbers);
      b.graph().outputs.push_back(guard);
    }
    graph = b.take();
  }
  static TensorId lie_in_order(GraphBuilder& b, const std::vector<TensorId>& numbers) {
    const auto neighbour = [&](TensorId x, int64_t first) {
      const Shape shape = b.shape(x);
      return b.slice(x, {0, first}, {shape[0], shape[1] - 1}, {1, 1});
    };
    const auto rises = [&](TensorId x) { return b.add("lt", {neighbour(x, 0), neighbour(x, 1)}); };
    const auto all = [&](TensorId holds) { return b.add("all", {holds}, {{"dims", Shape{0, 1}}}); };
    const TensorId documents = numbers[1];
    const TensorId stays_or_rises = b.add("le", {neighbour(documents, 0), neighbour(documents, 1)});
    TensorId holds = b.add("logical_and", {all(b.add("eq", {numbers[0], documents})), all(stays_or_rises)});
    if (numbers.size() == 2) return holds;
    const TensorId places = numbers[3];
    const TensorId in_order = b.add("logical_or", {rises(documents), rises(places)});
    holds = b.add("logical_and", {holds, all(b.add("eq", {numbers[2], places}))});
    return b.add("logical_and", {holds, all(in_order)});
  }

  const Graph& old_;
  Rewriter r_;
  bool is_for_gpu_;
  std::map<Sides, std::vector<TensorId>> rows_;
};

}  // namespace

Graph find_documents(const Graph& graph, bool is_for_gpu) { return FindDocuments(graph, is_for_gpu).run(); }

}  // namespace stepc
