#include "passes/rewrite/find_documents.h"

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

// Whole numbers of queries, (batch or 1, 1, queries, 1), and of keys, (batch or 1, 1, 1, keys).
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

// A mask of (batch, heads, queries, keys), or of fewer dimensions.
class MaskReader {
 public:
  MaskReader(const Graph& graph, int64_t queries, int64_t keys) : graph_(graph), queries_(queries), keys_(keys) {}

  // nullopt: the mask says something else, or more.
  std::optional<Terms> read(TensorId mask) {
    const Node* node = beneath_repeats(mask);
    if (node == nullptr || primitive_of(*node) != Primitive::kSelect) return std::nullopt;
    const std::optional<double> seen = value_of(node->inputs[1]), hidden = value_of(node->inputs[2]);
    const bool is_plain = seen == 0.0 && hidden == -INFINITY;
    const bool is_opposite = seen == -INFINITY && hidden == 0.0;
    if ((!is_plain && !is_opposite) || !collect(node->inputs[0], is_opposite) || !terms_.documents) return std::nullopt;
    return terms_;
  }

 private:
  // What makes a tensor, but for views that repeat it or add dimensions of one element in front.
  [[nodiscard]] const Node* beneath_repeats(TensorId& id) const {
    const Node* node = graph_.producer(id);
    while (node != nullptr && (has(*node, Trait::kBroadcast) || adds_dimensions(*node))) {
      id = node->inputs[0];
      node = graph_.producer(id);
    }
    return node;
  }
  [[nodiscard]] bool adds_dimensions(const Node& node) const {
    if (!has(node, Trait::kSameBytes) || graph_.type(node.inputs[0]).dtype != graph_.type(node.outputs[0]).dtype)
      return false;
    return padded(node.inputs[0]) == padded(node.outputs[0]);
  }
  // The shape with four dimensions, ones in front.
  [[nodiscard]] Shape padded(TensorId id) const {
    Shape shape = graph_.shape(id);
    if (shape.size() < 4) shape.insert(shape.begin(), 4 - shape.size(), 1);
    return shape;
  }
  [[nodiscard]] std::optional<double> value_of(TensorId id) const {
    const Node* node = beneath_repeats(id);
    if (node == nullptr || !has(*node, Trait::kSplat)) return std::nullopt;
    return node->attrs.number("value");
  }

  // All that a condition, or its opposite, demands; false: something that is neither documents nor places.
  bool collect(TensorId condition, bool negated) {  // NOLINT(misc-no-recursion): as deep as the program wrote it
    const Node* node = beneath_repeats(condition);
    if (node == nullptr) return false;
    if (const auto value = value_of(condition)) return (*value != 0) != negated;
    const std::optional<Primitive> primitive = primitive_of(*node);
    if (primitive == Primitive::kNot) return collect(node->inputs[0], !negated);
    if (negated) return false;
    if (primitive == Primitive::kAnd || primitive == Primitive::kBitAnd)
      return collect(node->inputs[0], false) && collect(node->inputs[1], false);
    if (primitive == Primitive::kEq)
      return set(terms_.documents, node->inputs[0], node->inputs[1]) ||
             set(terms_.documents, node->inputs[1], node->inputs[0]);
    return primitive == Primitive::kLe && set(terms_.places, node->inputs[1], node->inputs[0]);
  }
  bool set(std::optional<Sides>& sides, TensorId queries, TensorId keys) const {
    if (!are_numbers(queries, 2, queries_) || !are_numbers(keys, 3, keys_)) return false;
    if (sides && *sides != Sides{queries, keys}) return false;
    sides = {queries, keys};
    return true;
  }
  // One for each token of a row, along one dimension.
  [[nodiscard]] bool are_numbers(TensorId id, size_t dim, int64_t tokens) const {
    const Shape shape = padded(id);
    const DType dtype = graph_.type(id).dtype;
    return shape.size() == 4 && !is_floating(dtype) && dtype != DType::kBool && tokens > 1 && shape[1] == 1 &&
           shape[dim] == tokens && shape[5 - dim] == 1;
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
    append(inputs, *found->documents);
    Attrs attrs = node.attrs;
    const bool counts = found->places && q[2] == keys && counts_tokens(*found->places);
    if (counts) attrs.set("causal", true);
    if (found->places && !counts) append(inputs, *found->places);
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
  void append(std::vector<TensorId>& inputs, const Sides& sides) {
    auto [row, is_new] = rows_.try_emplace(sides);
    if (is_new)
      for (const TensorId id : {sides.queries, sides.keys}) {
        const Shape shape = old_.shape(id);
        const int64_t batch = shape.size() == 4 ? shape[0] : 1;
        const TensorId whole = r_.b().cast(r_[id], DType::kI64);
        row->second.push_back(r_.b().reshape(whole, {batch, element_count(shape) / batch}));
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
