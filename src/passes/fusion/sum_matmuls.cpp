#include "passes/fusion/sum_matmuls.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

struct Sum {
  const Node* matmul = nullptr;
  TensorId added;  // to the whole product, or a row
  bool is_row = false;
  const Node* end = nullptr;  // the node whose result it replaces: the sum's, or a relu's
};

bool is_node_of(const Node* node, std::string_view op) { return node != nullptr && node->op == op; }

class SumFinder {
 public:
  explicit SumFinder(const Graph& graph)
      : graph_(graph), readers_(graph.tensors.size()), leaves_(graph.tensors.size()) {
    for (const Node& node : graph.nodes)
      for (TensorId input : node.inputs) readers_[input.index()].push_back(&node);
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) leaves_[output.tensor.index()] = true;
  }

  [[nodiscard]] std::optional<Sum> find(const Node& add) const {
    if (!is_node_of(&add, "add")) return std::nullopt;
    std::optional<Sum> found;
    for (size_t i = 0; i < 2; ++i) {
      Sum sum{graph_.producer(add.inputs[i]), add.inputs[1 - i], false, &add};
      if (!is_product(sum.matmul, add) || !(is_in_place(sum, add) || is_bias(sum, add))) continue;
      if (!found || found->matmul < sum.matmul) found = sum;  // the one that is made later
    }
    return found;
  }

 private:
  [[nodiscard]] bool has_one_reader(TensorId tensor) const {
    return readers_[tensor.index()].size() == 1 && !leaves_[tensor.index()];
  }

  [[nodiscard]] bool is_product(const Node* node, const Node& add) const {
    if (!is_node_of(node, "matmul") || !has_one_reader(node->outputs[0])) return false;
    const TensorType& type = graph_.type(node->outputs[0]);
    return type == graph_.type(add.outputs[0]) && type.shape.size() == 2 && element_count(type.shape) > 0 &&
           is_floating(type.dtype) && size_of(type.dtype) >= 2;
  }

  // Another product that nothing else needs, or what the sum replaces in the program's memory.
  [[nodiscard]] bool is_in_place(const Sum& sum, const Node& add) const {
    if (graph_.type(sum.added) != graph_.type(add.outputs[0]) || sum.added == sum.matmul->outputs[0]) return false;
    if (!has_one_reader(sum.added)) return false;
    const Node* made = graph_.producer(sum.added);
    if (made != nullptr) return has(*made, Trait::kContraction) || find(*made).has_value();
    return std::ranges::any_of(graph_.outputs, [&](const GraphOutput& output) {
      return output.kind == GraphOutput::Kind::kUpdate && output.tensor == add.outputs[0] &&
             graph_.inputs[output.input].tensor == sum.added && graph_.inputs[output.input].strides.empty();
    });
  }

  // Whether it is a row for each of the product's; then also whether a relu ends it.
  [[nodiscard]] bool is_bias(Sum& sum, const Node& add) const {
    const int64_t columns = graph_.shape(add.outputs[0])[1];
    for (;;) {
      const Shape& shape = graph_.shape(sum.added);
      if (shape == Shape{columns}) break;
      const Node* made = graph_.producer(sum.added);
      const bool is_row = !shape.empty() && shape.back() == columns && element_count(shape) == columns;
      if (made == nullptr || !(has(*made, Trait::kBroadcast) || (is_row && has(*made, Trait::kSameBytes))))
        return false;
      sum.added = made->inputs[0];
    }
    sum.is_row = true;
    const Node* relu = only_reader(add.outputs[0]);
    if (is_node_of(relu, "relu")) sum.end = relu;
    return graph_.type(sum.added).dtype == graph_.type(add.outputs[0]).dtype &&
           !is_fused(*sum.end, sum.end->outputs[0]);
  }

  // Through views of all its bytes; nullptr: there are others.
  [[nodiscard]] const Node* only_reader(TensorId tensor) const {
    while (has_one_reader(tensor)) {
      const Node* reader = readers_[tensor.index()][0];
      if (!has(*reader, Trait::kSameBytes)) return reader;
      tensor = reader->outputs[0];
    }
    return nullptr;
  }

  // Whether a kernel of the same pass would compute the sum on its way.
  [[nodiscard]] bool is_fused(const Node& end, TensorId tensor) const {
    return std::ranges::any_of(readers_[tensor.index()], [&](const Node* reader) {
      if (is_view(*reader)) return is_fused(end, reader->outputs[0]);
      const bool is_of_kernel =
          has(*reader, Trait::kElementwise) || has(*reader, Trait::kReduction) || has(*reader, Trait::kSelects);
      return is_of_kernel && reader->source.phase == end.source.phase;
    });
  }

  const Graph& graph_;
  std::vector<std::vector<const Node*>> readers_;  // by tensor
  std::vector<bool> leaves_;
};

}  // namespace

Graph sum_matmuls(const Graph& graph) {
  const SumFinder finder(graph);
  std::map<const Node*, Sum> sums;          // by the node that each replaces
  std::map<const Node*, bool> is_left_out;  // products; and sums in front of a relu, with the views between
  for (const Node& node : graph.nodes) {
    const std::optional<Sum> sum = finder.find(node);
    if (!sum || is_left_out[sum->matmul]) continue;
    sums[sum->end] = *sum;
    is_left_out[sum->matmul] = true;
    for (const Node* between = graph.producer(sum->end->inputs[0]); sum->end != &node;
         between = graph.producer(between->inputs[0])) {
      is_left_out[between] = true;
      if (between == &node) break;
    }
  }
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    const auto sum = sums.find(&node);
    if (sum == sums.end()) {
      if (!is_left_out[&node]) r.keep(node);
      continue;
    }
    const Node& matmul = *sum->second.matmul;
    r.at(matmul);
    Attrs attrs = matmul.attrs;
    if (sum->second.is_row) attrs.set("relu", is_node_of(&node, "relu"));
    const TensorId made = r.b().add(sum->second.is_row ? "matmul_bias" : "matmul_add",
                                    {r[sum->second.added], r[matmul.inputs[0]], r[matmul.inputs[1]]}, std::move(attrs));
    r.replace(node.outputs[0], r.b().reshape(made, graph.shape(node.outputs[0])));
  }
  return r.finish();
}

}  // namespace stepc
