#include "passes/fusion/fuse_losses.h"

#include <algorithm>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

// A matmul's result that is a gradient, perhaps transposed.
struct GradientMatmul {
  const Node* node;
  bool transposed;
};

// One log_softmax of logits with all that reads it, on old tensors.
struct Loss {
  const Node* softmax = nullptr;
  const Node* nll = nullptr;
  std::vector<const Node*> sums;  // of rows of log_softmax
  TensorId hidden, weight;        // (tokens, width) and (classes, width)
  TensorId gradient;              // a token; invalid: there is no backward pass
  TensorId sum_gradient;          // likewise, or invalid
  std::vector<GradientMatmul> hidden_gradients, weight_gradients;
  // Nodes behind the softmax that the targets need, and those that the gradients of the loss need.
  std::vector<size_t> for_target, for_gradients;

  [[nodiscard]] TensorId target() const { return nll->inputs[1]; }
  [[nodiscard]] TensorId logp() const { return softmax->outputs[0]; }
  [[nodiscard]] int64_t ignore_index() const { return nll->attrs.get<int64_t>("ignore_index"); }
};

bool is(const Node* node, std::string_view op) { return node != nullptr && node->op == op; }
bool is_real(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), readers_(graph.tensors.size()), leaves_(graph.tensors.size()) {
    std::vector<bool> needed(graph.tensors.size(), false);
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) needed[output.tensor.index()] = leaves_[output.tensor.index()] = true;
    for (size_t n = graph.nodes.size(); n-- > 0;) {
      const Node& node = graph.nodes[n];
      const auto is_needed = [&](TensorId output) { return needed[output.index()]; };
      if (!(node.aten && node.aten->draws) && std::ranges::none_of(node.outputs, is_needed)) continue;
      for (TensorId input : node.inputs) {
        needed[input.index()] = true;
        readers_[input.index()].push_back(&node);
      }
    }
  }

  [[nodiscard]] std::optional<Loss> find(const Node& softmax) const {
    if (softmax.op != "log_softmax" || graph_.shape(softmax.outputs[0]).size() != 2 ||
        softmax.attrs.get<int64_t>("dim") != 1)
      return std::nullopt;
    Loss loss;
    loss.softmax = &softmax;
    if (!find_logits(loss) || !find_readers(loss) || !find_before(loss)) return std::nullopt;
    return loss;
  }

  [[nodiscard]] const std::vector<const Node*>& readers(TensorId tensor) const { return readers_[tensor.index()]; }
  [[nodiscard]] bool leaves(TensorId tensor) const { return leaves_[tensor.index()]; }

 private:
  // ---- forward

  [[nodiscard]] bool has_one_reader(TensorId tensor) const { return readers(tensor).size() == 1 && !leaves(tensor); }

  // Rows of classes stay rows of classes.
  [[nodiscard]] bool keeps_rows(const Node& reshape) const {
    const Shape& from = graph_.shape(reshape.inputs[0]);
    const Shape& to = graph_.shape(reshape.outputs[0]);
    return !from.empty() && !to.empty() && from.back() == to.back();
  }

  bool find_logits(Loss& loss) const {
    TensorId x = loss.softmax->inputs[0];
    const Node* made = graph_.producer(x);
    for (; has_one_reader(x); made = graph_.producer(x)) {
      const bool widens = is(made, "cast") && graph_.type(made->inputs[0]).dtype == DType::kBF16;
      if (!widens && !(is(made, "reshape") && keeps_rows(*made))) break;
      x = made->inputs[0];
    }
    if (!is(made, "matmul") || !has_one_reader(x) || graph_.shape(x).size() != 2 || !is_real(graph_.type(x).dtype) ||
        graph_.shape(x) != graph_.shape(loss.logp()) || made->attrs.get<bool>("transpose_a"))
      return false;
    loss.hidden = made->inputs[0];
    loss.weight = made->inputs[1];
    if (made->attrs.get<bool>("transpose_b")) return true;
    const Node* transpose = graph_.producer(loss.weight);
    if (!is_matrix_transpose(transpose)) return false;
    loss.weight = transpose->inputs[0];
    return true;
  }

  [[nodiscard]] static bool is_matrix_transpose(const Node* node) {
    return is(node, "transpose") && node->attrs.get<Shape>("permutation") == Shape{1, 0};
  }

  // Everything that reads the log-probabilities.
  bool find_readers(Loss& loss) const {
    if (leaves(loss.logp())) return false;
    const Node* backward = nullptr;
    for (const Node* reader : readers(loss.logp())) {
      if (reader->op == "nll_loss" && loss.nll == nullptr) {
        loss.nll = reader;
      } else if (reader->op == "sum" && reader->attrs.get<Shape>("dims") == Shape{1}) {
        loss.sums.push_back(reader);
      } else if (reader->op == "log_softmax_backward" && backward == nullptr && reader->inputs[0] != loss.logp()) {
        backward = reader;
      } else {
        return false;
      }
    }
    if (loss.nll == nullptr) return false;
    return backward == nullptr ||
           (find_gradients(loss, *backward) && find_gradient_matmuls(loss, backward->outputs[0], false));
  }

  // ---- backward

  // The gradient of log-probabilities: of the target's alone, or also one number a row.
  bool find_gradients(Loss& loss, const Node& backward) const {
    const TensorId whole = backward.inputs[0];
    if (!has_one_reader(whole)) return false;
    const Node* made = graph_.producer(whole);
    if (is_nll_backward(made, loss)) {
      loss.gradient = made->inputs[0];
      return true;
    }
    if (!is(made, "add")) return false;
    for (size_t i = 0; i < 2; ++i) {
      const Node* target = graph_.producer(made->inputs[i]);
      TensorId column = made->inputs[1 - i];
      while (is(graph_.producer(column), "expand")) column = graph_.producer(column)->inputs[0];
      if (!is_nll_backward(target, loss) || !has_one_reader(made->inputs[i]) ||
          graph_.shape(column) != Shape{graph_.shape(loss.logp())[0], 1})
        continue;
      loss.gradient = target->inputs[0];
      loss.sum_gradient = column;
      return true;
    }
    return false;
  }
  [[nodiscard]] bool is_nll_backward(const Node* node, const Loss& loss) const {
    return is(node, "nll_loss_backward") && same(node->inputs[1], loss.target()) &&
           node->attrs.get<int64_t>("ignore_index") == loss.ignore_index();
  }

  // The same tensor, perhaps by way of the same views made twice.
  [[nodiscard]] bool same(TensorId a, TensorId b) const {
    if (a == b) return true;
    const Node* left = graph_.producer(a);
    const Node* right = graph_.producer(b);
    if (left == nullptr || right == nullptr || left->op != right->op || left->attrs != right->attrs || left->aten)
      return false;
    return op_def(left->op).has(Trait::kView) && left->inputs.size() == 1 && same(left->inputs[0], right->inputs[0]);
  }

  // `x` (tokens, classes) holds gradients of logits, or their transpose: only the two matmuls may read it.
  bool find_gradient_matmuls(Loss& loss, TensorId x, bool transposed) const {
    if (leaves(x)) return false;
    return std::ranges::all_of(readers(x), [&](const Node* reader) {
      const bool passes = (reader->op == "cast" && is_real(graph_.type(reader->outputs[0]).dtype)) ||
                          (reader->op == "reshape" && !transposed && keeps_rows(*reader));
      if (passes) return find_gradient_matmuls(loss, reader->outputs[0], transposed);
      if (is_matrix_transpose(reader)) return find_gradient_matmuls(loss, reader->outputs[0], !transposed);
      return reader->op == "matmul" && graph_.shape(x).size() == 2 && take_matmul(loss, *reader, x, transposed);
    });
  }

  bool take_matmul(Loss& loss, const Node& matmul, TensorId x, bool transposed) const {
    const size_t place = matmul.inputs[0] == x ? 0 : 1;
    const TensorId other = matmul.inputs[1 - place];
    if (other == x) return false;
    const bool transposes[] = {matmul.attrs.get<bool>("transpose_a"), matmul.attrs.get<bool>("transpose_b")};
    // As the left operand of gradients x other, whose transpose is other' x gradients'.
    const bool is_right = place == 1;
    const bool x_transposed = (transposed != transposes[place]) != is_right;
    const bool other_transposed = transposes[1 - place] != is_right;
    if (reads(other, other_transposed, x_transposed ? loss.hidden : loss.weight)) {
      (x_transposed ? loss.weight_gradients : loss.hidden_gradients).push_back({&matmul, is_right});
      return true;
    }
    return false;
  }
  [[nodiscard]] bool reads(TensorId operand, bool transposed, TensorId wanted) const {
    for (const Node* made = graph_.producer(operand); is_matrix_transpose(made) && operand != wanted;
         made = graph_.producer(operand)) {
      operand = made->inputs[0];
      transposed = !transposed;
    }
    return !transposed && same(operand, wanted);
  }

  // ---- order

  bool find_before(Loss& loss) const {
    std::vector<TensorId> gradients;
    for (TensorId tensor : {loss.gradient, loss.sum_gradient})
      if (tensor.valid()) gradients.push_back(tensor);
    return find_needs(loss, {loss.target()}, loss.for_target) && find_needs(loss, gradients, loss.for_gradients);
  }

  // What stands behind the softmax and moves before it: nothing that follows from the loss.
  bool find_needs(const Loss& loss, std::vector<TensorId> wanted, std::vector<size_t>& needs) const {
    std::vector<bool> seen(graph_.nodes.size(), false);
    const auto softmax = static_cast<size_t>(loss.softmax - graph_.nodes.data());
    while (!wanted.empty()) {
      const TensorId tensor = wanted.back();
      wanted.pop_back();
      const Node* made = graph_.producer(tensor);
      if (made == nullptr || tensor == loss.nll->outputs[1]) continue;  // which rows count: the targets say
      const auto n = static_cast<size_t>(made - graph_.nodes.data());
      if (n < softmax || seen[n]) continue;
      if (n == softmax || (made->aten && made->aten->draws)) return false;
      seen[n] = true;
      needs.push_back(n);
      wanted.insert(wanted.end(), made->inputs.begin(), made->inputs.end());
    }
    std::ranges::sort(needs);
    return true;
  }

  const Graph& graph_;
  std::vector<std::vector<const Node*>> readers_;  // by tensor, of nodes that something needs
  std::vector<bool> leaves_;                       // by tensor: it is an output of the graph
};

class LossFuser {
 public:
  explicit LossFuser(const Graph& graph)
      : graph_(graph), finder_(graph), r_(graph), made_(graph.nodes.size()), instead_(graph.tensors.size()) {}

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!made_[n])
        if (const std::optional<Loss> loss = finder_.find(graph_.nodes[n])) put(*loss);
      make(n);
    }
    return r_.finish();
  }

 private:
  void make(size_t n) {
    if (made_[n]) return;
    made_[n] = true;
    r_.keep(graph_.nodes[n]);
    for (TensorId output : graph_.nodes[n].outputs)
      if (instead_[output.index()].valid()) r_.replace(output, instead_[output.index()]);
  }

  // `now` is what readers of `old` find, from here on or once `old` is made.
  void stand_in(TensorId old, TensorId now) {
    const TensorType& type = graph_.type(old);
    instead_[old.index()] = r_.b().cast(r_.b().reshape(now, type.shape), type.dtype);
  }

  // What is replaced stays without readers, for dead_code.
  void put(const Loss& loss) {
    GraphBuilder& b = r_.b();
    for (size_t n : loss.for_target) make(n);
    r_.at(*loss.softmax);
    const TensorId target = r_[loss.target()];
    const TensorId counts = loss.nll->outputs[1];
    const TensorId ignored = b.full(static_cast<double>(loss.ignore_index()), DType::kI64);
    stand_in(counts, b.add("ne", {target, ignored}));
    r_.replace(counts, instead_[counts.index()]);
    for (size_t n : loss.for_gradients) make(n);
    r_.at(*loss.softmax);
    std::vector<TensorId> inputs = {r_[loss.hidden], r_[loss.weight], target};
    for (TensorId tensor : {loss.gradient, loss.sum_gradient})
      if (tensor.valid()) inputs.push_back(b.cast(b.reshape(r_[tensor], b.shape(target)), DType::kF32));
    const std::vector<TensorId> results = b.add_all("linear_cross_entropy", inputs,
                                                    {{"ignore_index", loss.ignore_index()},
                                                     {"frozen", loss.weight_gradients.empty()},
                                                     {"gradient_dtype", weight_gradient_dtype(loss)}});
    stand_in(loss.nll->outputs[0], results[0]);
    for (const Node* sum : loss.sums) stand_in(sum->outputs[0], results[1]);
    for (const GradientMatmul& matmul : loss.hidden_gradients) put_gradient(matmul, results[2]);
    for (const GradientMatmul& matmul : loss.weight_gradients) put_gradient(matmul, results[3]);
  }

  void put_gradient(const GradientMatmul& matmul, TensorId now) {
    const TensorId old = matmul.node->outputs[0];
    if (matmul.transposed) now = r_.b().transpose(now, {1, 0});
    stand_in(old, now);
    if (graph_.type(old).dtype != r_.b().dtype(now))
      for (const Node* cast : finder_.readers(old)) stand_in(cast->outputs[0], now);
  }

  // f32 where that is what everybody makes of it.
  DType weight_gradient_dtype(const Loss& loss) const {
    const bool widened = std::ranges::all_of(loss.weight_gradients, [&](const GradientMatmul& matmul) {
      const TensorId gradient = matmul.node->outputs[0];
      return !finder_.leaves(gradient) && std::ranges::all_of(finder_.readers(gradient), [&](const Node* reader) {
        return reader->op == "cast" && graph_.type(reader->outputs[0]).dtype == DType::kF32;
      });
    });
    return widened ? DType::kF32 : graph_.type(loss.hidden).dtype;
  }

  const Graph& graph_;
  Finder finder_;
  Rewriter r_;
  std::vector<bool> made_;         // by old node
  std::vector<TensorId> instead_;  // by old tensor
};

}  // namespace

Graph fuse_losses(Graph graph) {
  const Graph old = std::move(graph);
  return LossFuser(old).run();
}

}  // namespace stepc
