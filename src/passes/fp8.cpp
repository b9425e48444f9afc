#include "passes/fp8.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ops/f8_bits.h"
#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

constexpr int64_t kMultiple = 16;     // of a matrix's dimensions (torch._scaled_mm)
constexpr double kLeastAmax = 1e-12;  // of zeros there is no scale (torchao's EPS)
constexpr std::array<std::string_view, 2> kOutputLayers = {"lm_head.weight", "output.weight"};

bool is_matrix_transpose(const Node* node) {
  return node != nullptr && node->op == "transpose" && node->attrs.get<Shape>("permutation") == Shape{1, 0};
}

// A matrix behind its transposes.
struct Matrix {
  TensorId tensor;
  bool transposed = false;
};
Matrix behind_transposes(const Graph& graph, TensorId tensor) {
  Matrix out{tensor};
  for (const Node* made = graph.producer(tensor); is_matrix_transpose(made); made = graph.producer(out.tensor)) {
    out.tensor = made->inputs[0];
    out.transposed = !out.transposed;
  }
  return out;
}

// The dtypes of a product's operands.
struct Fp8Product {
  DType left, right;
};

// Finds the linear layers' products: of inputs and weights in the forward pass, or where that runs once more, and
// those of their gradients.
class Finder {
 public:
  Finder(const Graph& graph, Fp8Recipe recipe)
      : graph_(graph),
        gradient_(recipe == Fp8Recipe::kTensorwise ? DType::kF8E5M2 : DType::kF8E4M3),
        readers_(graph.tensors.size()) {
    for (const Node& node : graph.nodes)
      for (TensorId input : node.inputs) readers_[input.index()].push_back(&node);
    for (const Node& node : graph.nodes)
      if (is_product(node)) find_weight(node);
    for (const Node& node : graph.nodes)
      if (is_product(node)) find_inputs(node);
  }

  [[nodiscard]] std::optional<Fp8Product> find(const Node& node) const {
    if (!is_product(node)) return std::nullopt;
    const auto [left, right] = operands(node);
    const DType value = DType::kF8E4M3;
    if (is_forward(left, right)) return Fp8Product{value, value};
    if (is_input_gradient(right, !right.transposed)) return Fp8Product{gradient_, value};
    if (is_input_gradient(left, left.transposed)) return Fp8Product{value, gradient_};  // its transpose
    // The weight's gradient: gradients' x input, or the transpose of that.
    if (!left.transposed || right.transposed) return std::nullopt;
    const int64_t rows = graph_.shape(left.tensor)[1], columns = graph_.shape(right.tensor)[1];
    if (inputs_.contains({content_of(right), rows}) || gradients_.contains({content_of(left), columns}))
      return Fp8Product{gradient_, value};
    if (inputs_.contains({content_of(left), columns}) || gradients_.contains({content_of(right), rows}))
      return Fp8Product{value, gradient_};
    return std::nullopt;
  }

  // The operands of a product, its own transposes counted.
  [[nodiscard]] std::pair<Matrix, Matrix> operands(const Node& node) const {
    std::pair<Matrix, Matrix> out(behind_transposes(graph_, node.inputs[0]), behind_transposes(graph_, node.inputs[1]));
    out.first.transposed ^= node.attrs.get<bool>("transpose_a");
    out.second.transposed ^= node.attrs.get<bool>("transpose_b");
    return out;
  }

 private:
  // Views of one tensor as a matrix of the same rows are one input.
  using Content = std::pair<TensorId, Shape>;

  [[nodiscard]] bool is_product(const Node& node) const {
    if (node.op != "matmul" || node.source.phase == Phase::kUpdate) return false;
    const DType dtype = graph_.type(node.outputs[0]).dtype;
    const auto is_fit = [&](TensorId tensor) {
      const Shape& shape = graph_.shape(tensor);
      return shape.size() == 2 && std::ranges::all_of(shape, [](int64_t n) { return n > 0 && n % kMultiple == 0; });
    };
    return is_floating(dtype) && dtype != DType::kF64 && is_fit(node.inputs[0]) && is_fit(node.inputs[1]);
  }

  void find_weight(const Node& node) {
    const Matrix right = operands(node).second;
    const TensorId weight = weight_of(right);
    const bool is_layer = node.source.phase == Phase::kForward && weight.valid() && !is_of_output_layer(weight) &&
                          !goes_to_softmax(node.outputs[0]);
    if (is_layer) weights_.try_emplace(weight, right.transposed);
  }
  void find_inputs(const Node& node) {
    const auto [left, right] = operands(node);
    const auto outputs = [&](const Matrix& weight) { return graph_.shape(weight.tensor)[weight.transposed ? 0 : 1]; };
    if (is_forward(left, right)) inputs_.emplace(content_of(left), outputs(right));
    if (is_input_gradient(right, !right.transposed) && !left.transposed)
      gradients_.emplace(content_of(left), outputs(right));
  }

  // x times a weight, as it stands in the forward pass.
  [[nodiscard]] bool is_forward(const Matrix& left, const Matrix& right) const {
    const auto weight = weights_.find(weight_of(right));
    return !left.transposed && weight != weights_.end() && weight->second == right.transposed;
  }
  // Whether `matrix` is a weight that stands so in the forward pass's product if it is turned.
  [[nodiscard]] bool is_input_gradient(const Matrix& matrix, bool transposed) const {
    const auto weight = weights_.find(weight_of(matrix));
    return weight != weights_.end() && weight->second == transposed;
  }

  [[nodiscard]] Content content_of(const Matrix& matrix) const {
    TensorId tensor = matrix.tensor;
    for (const Node* made = graph_.producer(tensor); made != nullptr && made->op == "reshape";
         made = graph_.producer(tensor))
      tensor = made->inputs[0];
    return {tensor, graph_.shape(matrix.tensor)};
  }
  // The parameter, perhaps cast; invalid: there is none.
  [[nodiscard]] TensorId weight_of(const Matrix& matrix) const {
    TensorId tensor = matrix.tensor;
    for (const Node* made = graph_.producer(tensor); made != nullptr && made->op == "cast";
         made = graph_.producer(tensor))
      tensor = behind_transposes(graph_, made->inputs[0]).tensor;
    if (graph_.producer(tensor) != nullptr) return {};
    const GraphInput& input = graph_.inputs[graph_.tensors[tensor.index()].place];
    return input.kind == InputKind::kParameter ? tensor : TensorId();
  }
  [[nodiscard]] bool is_of_output_layer(TensorId weight) const {
    const std::string& key = graph_.inputs[graph_.tensors[weight.index()].place].key;
    const bool is_named = std::ranges::any_of(kOutputLayers, [&](std::string_view name) {
      return key.ends_with(name) && (key.size() == name.size() || key[key.size() - name.size() - 1] == '.');
    });
    if (is_named && key.find_first_of("0123456789") == std::string::npos) return true;
    return std::ranges::any_of(readers_[weight.index()],
                               [](const Node* reader) { return has(*reader, Trait::kSelects); });
  }
  // By views, casts and a bias alone.
  [[nodiscard]] bool goes_to_softmax(TensorId result) const {
    return std::ranges::any_of(readers_[result.index()], [&](const Node* reader) {
      if (reader->op == "log_softmax" || reader->op == "softmax") return true;
      const bool passes = is_view(*reader) || reader->op == "cast" || reader->op == "add";
      return passes && reader->source.phase == Phase::kForward && goes_to_softmax(reader->outputs[0]);
    });
  }

  const Graph& graph_;
  DType gradient_;
  std::vector<std::vector<const Node*>> readers_;    // by tensor
  std::map<TensorId, bool> weights_;                 // parameters; whether products read them transposed
  std::set<std::pair<Content, int64_t>> inputs_;     // of layers, with the number of outputs
  std::set<std::pair<Content, int64_t>> gradients_;  // of layers' results, with the number of inputs
};

class Writer {
 public:
  Writer(const Graph& graph, Fp8Recipe recipe) : graph_(graph), recipe_(recipe), finder_(graph, recipe), r_(graph) {}

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (const std::optional<Fp8Product> product = finder_.find(node))
        put(node, *product);
      else
        r_.keep(node);
    }
    return r_.finish();
  }

 private:
  struct Operand {
    TensorId values;    // float8, as the matrix behind the transposes
    TensorId unscales;  // what brings them back
  };

  void put(const Node& node, const Fp8Product& product) {
    r_.at(node);
    const auto [left, right] = finder_.operands(node);
    const Operand a = scaled(left, product.left, left.transposed ? 0 : 1);
    const Operand b = scaled(right, product.right, right.transposed ? 1 : 0);
    const TensorId a_unscales = left.transposed && is_rowwise() ? r_.b().transpose(a.unscales, {1, 0}) : a.unscales;
    const TensorId b_unscales = right.transposed && is_rowwise() ? r_.b().transpose(b.unscales, {1, 0}) : b.unscales;
    r_.replace(node.outputs[0], r_.b().add("scaled_matmul", {a.values, b.values, a_unscales, b_unscales},
                                           {{"transpose_a", left.transposed},
                                            {"transpose_b", right.transposed},
                                            {"dtype", graph_.type(node.outputs[0]).dtype}}));
  }

  [[nodiscard]] bool is_rowwise() const { return recipe_ == Fp8Recipe::kRowwise; }

  // Whether it lies in memory in its dtype: what the program gives, perhaps cast.
  [[nodiscard]] bool is_given(TensorId tensor) const {
    const Node* made = graph_.producer(tensor);
    return made == nullptr || ((made->op == "cast" || is_view(*made)) && is_given(made->inputs[0]));
  }
  // What a kernel has computed of bf16 or f16 it hands on within itself in f32, and only a cast to fewer digits rounds
  // there. Float8's steps are so wide that this would show: a number next to where two of them meet falls on the other
  // side, and the same matrix would be another one for the backward pass, which reads it from memory. So it is rounded
  // here. simplify takes a cast to f32 and back away, but not the sum between them, which makes 0 of -0 and nothing
  // else.
  TensorId rounded(TensorId tensor) {
    GraphBuilder& b = r_.b();
    const TensorId x = r_[tensor];
    const DType dtype = graph_.type(tensor).dtype;
    if (dtype == DType::kF32 || is_given(tensor)) return x;
    return b.cast(b.add("add", {b.cast(x, DType::kF32), b.full(0, DType::kF32)}), dtype);
  }

  // `dim`: along which the product sums.
  Operand scaled(const Matrix& matrix, DType dtype, int64_t dim) {
    GraphBuilder& b = r_.b();
    const TensorId x = rounded(matrix.tensor);
    const double largest = f8_format(dtype).largest;
    const auto number = [&](double value) { return b.full(value, DType::kF32); };
    const Shape dims = is_rowwise() ? Shape{dim} : Shape{0, 1};
    const TensorId amax = b.cast(b.add("max", {b.add("abs", {x})}, {{"dims", dims}, {"keepdim", true}}), DType::kF32);
    const TensorId scale = b.add("div", {number(largest), b.add("maximum", {amax, number(kLeastAmax)})});
    const TensorId wide = b.add("mul", {b.cast(x, DType::kF32), scale});
    const TensorId bounded = b.add("maximum", {b.add("minimum", {wide, number(largest)}), number(-largest)});
    return {b.cast(bounded, dtype), b.add("reciprocal", {scale})};
  }

  const Graph& graph_;
  Fp8Recipe recipe_;
  Finder finder_;
  Rewriter r_;
};

}  // namespace

std::string_view name_of(Fp8Recipe recipe) { return recipe == Fp8Recipe::kTensorwise ? "tensorwise" : "rowwise"; }
std::optional<Fp8Recipe> fp8_recipe_from_name(std::string_view name) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise})
    if (name_of(recipe) == name) return recipe;
  return std::nullopt;
}

Graph fp8(Graph graph, Fp8Recipe recipe) {
  const Graph old = std::move(graph);
  return Writer(old, recipe).run();
}

}  // namespace stepc
