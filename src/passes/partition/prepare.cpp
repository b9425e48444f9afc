#include "passes/partition/prepare.h"

#include <algorithm>
#include <optional>

#include "ops/batch_norm.h"
#include "ops/causal_mask.h"
#include "ops/one_hot.h"
#include "ops/op_def.h"
#include "passes/partition/means_by_rank.h"
#include "passes/rewrite/dead_code.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

bool is_binary_add(const Node& node) {
  return has(node, Trait::kLinear) && has(node, Trait::kCommutative) && node.inputs.size() == 2;
}

class Preparation {
 public:
  Preparation(const Graph& graph, const Strategy& strategy)
      : old_(graph),
        r_(graph),
        uses_(use_counts(graph)),
        masks_causes_(strategy.mesh.find("cp") && strategy.context == Context::kGather),
        splits_classes_(strategy.mesh.find("tp").has_value()),
        splits_batch_(!data_axes(strategy.mesh).empty()) {}

  Graph run() {
    for (const Node& node : old_.nodes) {
      r_.at(node);
      if (splits_batch_ && node.aten && normed(node)) continue;
      if (!node.aten && ((masks_causes_ && masked(node)) || (splits_classes_ && named(node)) || products_first(node) ||
                         hoisted(node)))
        continue;
      r_.keep(node);
    }
    return dead_code(r_.finish());
  }

 private:
  Graph& now() { return r_.b().graph(); }

  // A copy: building moves the graph's nodes.
  std::optional<Node> producer(TensorId id) {
    const Node* node = now().producer(id);
    return node == nullptr ? std::nullopt : std::optional<Node>(*node);
  }

  // ---- sums

  // A matmul's result, or a sum of such, but for views.
  bool is_product(TensorId id) {
    const Node* node = now().producer(id);
    while (node != nullptr && is_view(*node)) node = now().producer(node->inputs[0]);
    if (node == nullptr) return false;
    if (has(*node, Trait::kContraction)) return true;
    return is_binary_add(*node) && is_product(node->inputs[0]) && is_product(node->inputs[1]);
  }
  // (x + a) + b becomes x + (a + b), where a and b are products and x is not.
  bool products_first(const Node& node) {
    if (!is_binary_add(node)) return false;
    for (size_t i = 0; i < 2; ++i) {
      const TensorId sum = node.inputs[i];
      const TensorId b = r_[node.inputs[1 - i]];
      const std::optional<Node> inner = producer(r_[sum]);
      if (!inner || !is_binary_add(*inner) || uses_[sum.index()] != 1 || !is_product(b)) continue;
      for (size_t k = 0; k < 2; ++k) {
        const TensorId x = inner->inputs[k], a = inner->inputs[1 - k];
        const bool same = now().type(a) == now().type(b) && now().type(x) == now().type(a);
        if (!same || !is_product(a) || is_product(x)) continue;
        r_.replace(node.outputs[0], r_.b().add(node.op, {x, r_.b().add(node.op, {a, b})}));
        return true;
      }
    }
    return false;
  }

  // ---- concatenations

  // The operand on which an elementwise node works alone, its others being single numbers.
  static std::optional<size_t> worked_on(const Graph& graph, const Node& node) {
    if (!has(node, Trait::kElementwise)) return std::nullopt;
    std::optional<size_t> one;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (graph.shape(node.inputs[i]).empty() && graph.producer(node.inputs[i]) != nullptr &&
          has(*graph.producer(node.inputs[i]), Trait::kSplat))
        continue;
      if (one) return std::nullopt;
      one = i;
    }
    return one;
  }
  bool hoisted(const Node& node) {
    if (node.inputs.size() < 2 || !has(node, Trait::kLinear) || op_def(node.op).max_inputs != kMany) return false;
    std::vector<TensorId> parts = r_.inputs_of(node);
    std::vector<Node> works;  // what is done behind the concatenation, the last first
    while (const std::optional<Node> work = peeled(parts)) works.push_back(*work);
    if (works.empty()) return false;
    TensorId result = r_.b().add(node.op, parts, node.attrs);
    for (size_t w = works.size(); w-- > 0;) {
      const size_t one = *worked_on(now(), works[w]);
      std::vector<TensorId> inputs = works[w].inputs;
      inputs[one] = result;
      result = r_.b().add(works[w].op, inputs, works[w].attrs);
    }
    r_.replace(node.outputs[0], result);
    return true;
  }
  // The elementwise node that stands before every part, perhaps under a reshape; `parts` are then what is before that.
  std::optional<Node> peeled(std::vector<TensorId>& parts) {
    std::vector<TensorId> before;
    std::optional<Node> first;
    std::vector<std::optional<Shape>> shapes;
    for (TensorId part : parts) {
      std::optional<Node> node = producer(part);
      std::optional<Shape> shape;
      if (node && has(*node, Trait::kSameBytes) && has(*node, Trait::kShapeAttr)) {
        shape = now().shape(part);
        node = producer(node->inputs[0]);
      }
      if (!node || node->aten) return std::nullopt;
      const std::optional<size_t> one = worked_on(now(), *node);
      if (!one || now().shape(node->inputs[*one]) != now().shape(node->outputs[0])) return std::nullopt;
      if (first && !is_same_work(*first, *node, *one)) return std::nullopt;
      before.push_back(node->inputs[*one]);
      shapes.push_back(std::move(shape));
      if (!first) first = std::move(node);
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = shapes[i] ? r_.b().reshape(before[i], *shapes[i]) : before[i];
    return first;
  }
  bool is_same_work(const Node& a, const Node& b, size_t one) {
    if (a.op != b.op || a.attrs != b.attrs || a.inputs.size() != b.inputs.size()) return false;
    if (now().type(a.inputs[one]).dtype != now().type(b.inputs[one]).dtype) return false;
    for (size_t i = 0; i < a.inputs.size(); ++i) {
      if (i == one || a.inputs[i] == b.inputs[i]) continue;
      const Node *x = now().producer(a.inputs[i]), *y = now().producer(b.inputs[i]);
      if (x == nullptr || y == nullptr || x->op != y->op || x->attrs != y->attrs || !x->inputs.empty()) return false;
    }
    return true;
  }

  bool masked(const Node& node) {
    const auto results = with_causal_mask(r_.b(), node, r_.inputs_of(node));
    if (results) r_.replace(node.outputs, *results);
    return results.has_value();
  }

  bool named(const Node& node) {
    const auto sum = sum_of_one_hot(r_.b(), node, r_.inputs_of(node));
    if (sum) r_.replace(node.outputs[0], *sum);
    return sum.has_value();
  }

  bool normed(const Node& node) {
    const auto results = batch_norm_in_core_ops(r_.b(), old_, node, r_.inputs_of(node));
    if (results) r_.replace(node.outputs, *results);
    return results.has_value();
  }

  const Graph& old_;
  Rewriter r_;
  std::vector<uint32_t> uses_;
  bool masks_causes_, splits_classes_, splits_batch_;
};

}  // namespace

Graph prepare_for_ranks(const Graph& graph, const Strategy& strategy) { return Preparation(graph, strategy).run(); }

}  // namespace stepc
