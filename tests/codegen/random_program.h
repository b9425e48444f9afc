// Random programs, cut into groups by fuse(), on odd, empty and single sizes, with strided inputs, NaN and infinities.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "interp/array.h"
#include "ops/graph_builder.h"
#include "ops/op_def.h"
#include "passes/fusion/fuse.h"
#include "passes/rewrite/decompose.h"

namespace stepc {

class RandomProgram {
 public:
  explicit RandomProgram(uint64_t seed) : random_(seed) {}

  Graph graph() {
    constexpr int64_t kSizes[] = {1, 2, 3, 5, 16, 17, 40};
    const size_t rank = 1 + below(3);
    for (size_t d = 0; d < rank; ++d) shape_.push_back(kSizes[below(std::size(kSizes))]);
    if (below(12) == 0) shape_[below(rank)] = 0;
    for (size_t i = 0; i < 3; ++i) add_input();
    for (size_t step = 0; step < 14; ++step) add_step();
    Graph& graph = b_.graph();
    for (int i = 0; i < 4; ++i) {
      graph.outputs.emplace_back();
      graph.outputs.back().tensor = any();
    }
    return fuse(decompose(b_.take()));
  }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  template <class T, size_t kCount>
  T pick(const T (&list)[kCount]) {
    return list[below(kCount)];
  }
  TensorId any() { return values_[below(values_.size())]; }

  void add_input() {
    Shape shape = shape_;
    for (int64_t& size : shape)
      if (below(4) == 0) size = std::min<int64_t>(size, 1);
    while (!shape.empty() && below(5) == 0) shape.erase(shape.begin());
    constexpr DType kTypes[] = {DType::kF32, DType::kF32, DType::kF32,  DType::kBF16, DType::kBF16, DType::kF16,
                                DType::kF64, DType::kI64, DType::kBool, DType::kI32,  DType::kU8};
    GraphInput input{InputKind::kCaptured, str("{}", values_.size()), {}, {}, 0};
    if (below(2) == 0) {  // a window with gaps
      input.offset = static_cast<int64_t>(below(5));
      input.strides = contiguous_strides(shape);
      int64_t factor = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        factor *= 1 + static_cast<int64_t>(below(2));
        input.strides[d] *= factor;
      }
      if (!shape.empty() && below(4) == 0) input.strides[below(shape.size())] = 0;
    }
    values_.push_back(b_.graph().add_input(std::move(input), {pick(kTypes), shape}));
  }

  // Another operand for x: of its type, and of a shape that goes with it.
  TensorId beside(TensorId x) {
    const TensorId y = any();
    const DType dtype = b_.dtype(x);
    const Shape& a = b_.shape(x);
    const Shape b = b_.shape(y);
    bool fits = true;
    for (size_t d = 1; d <= std::min(a.size(), b.size()); ++d)
      fits = fits && (a[a.size() - d] == b[b.size() - d] || a[a.size() - d] == 1 || b[b.size() - d] == 1);
    if (fits && b_.dtype(y) == dtype) return y;
    if (fits) return b_.cast(y, dtype);
    return b_.full(1.5, dtype);
  }

  void add_step() {
    const TensorId x = any();
    const DType dtype = b_.dtype(x);
    const Shape shape = b_.shape(x);
    const TensorId made = is_floating(dtype) && below(3) != 0 ? real_step(x) : any_step(x, shape);
    if (made.valid() && element_count(b_.shape(made)) <= 6000) values_.push_back(made);
  }

  TensorId real_step(TensorId x) {
    constexpr std::string_view kUnary[] = {"neg",   "abs",     "exp",  "log",   "tanh",   "erf",      "sin",
                                           "cos",   "sqrt",    "silu", "floor", "square", "expm1",    "log1p",
                                           "rsqrt", "sigmoid", "gelu", "round", "relu",   "gelu_tanh"};
    constexpr std::string_view kBinary[] = {"add", "sub", "mul", "div", "maximum", "minimum", "silu_backward"};
    if (below(2) == 0) return b_.add(pick(kUnary), {x});
    return b_.add(pick(kBinary), {x, beside(x)});
  }

  TensorId any_step(TensorId x, const Shape& shape) {
    const auto rank = shape.size();
    const size_t dim = rank == 0 ? 0 : below(rank);
    switch (below(11)) {
      case 0: {
        constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kBool};
        const DType to = pick(kTypes);
        // Where a number is cut off, an error in its last place would show.
        return is_floating(b_.dtype(x)) && !is_floating(to) ? TensorId() : b_.cast(x, to);
      }
      case 1: {
        Shape permutation(rank);
        for (size_t d = 0; d < rank; ++d) permutation[d] = static_cast<int64_t>(d);
        std::shuffle(permutation.begin(), permutation.end(), random_);
        return b_.transpose(x, permutation);
      }
      case 2:
        return b_.reshape(x, below(2) == 0 ? Shape{element_count(shape)} : Shape{1, element_count(shape), 1});
      case 3: {
        Shape wide = shape;
        wide.insert(wide.begin(), static_cast<int64_t>(1 + below(3)));
        return b_.expand(x, wide);
      }
      case 4: {
        if (rank == 0 || shape[dim] == 0) return {};
        Shape starts(rank, 0), sizes = shape, steps(rank, 1);
        starts[dim] = static_cast<int64_t>(below(static_cast<size_t>(shape[dim])));
        steps[dim] = static_cast<int64_t>(1 + below(2));
        sizes[dim] = (shape[dim] - starts[dim] + steps[dim] - 1) / steps[dim];
        return b_.slice(x, starts, sizes, steps);
      }
      case 5: {
        if (rank == 0) return {};
        Shape low(rank, 0), high(rank, 0);
        low[dim] = static_cast<int64_t>(below(3));
        high[dim] = static_cast<int64_t>(below(3));
        return b_.add("pad", {x}, {{"low", low}, {"high", high}});
      }
      case 6: {
        const TensorId y = any();
        if (rank == 0 || b_.shape(y) != shape || b_.dtype(y) != b_.dtype(x)) return {};
        return b_.add("concat", {x, y}, {{"dim", static_cast<int64_t>(dim)}});
      }
      case 7: {
        if (rank == 0 || b_.shape(x) != shape) return {};
        Shape dims = {static_cast<int64_t>(dim)};
        if (below(3) == 0) {
          dims.clear();
          for (size_t d = 0; d < rank; ++d) dims.push_back(static_cast<int64_t>(d));
        }
        const bool is_bool = b_.dtype(x) == DType::kBool;
        constexpr std::string_view kOps[] = {"sum", "sum", "max", "min"};
        const std::string_view op = is_bool ? (below(2) == 0 ? "any" : "all") : pick(kOps);
        return b_.add(op, {x}, {{"dims", dims}, {"keepdim", below(2) == 0}});
      }
      case 8: {
        if (is_floating(b_.dtype(x))) return b_.add("where", {b_.add("is_nan", {x}), b_.full(0, b_.dtype(x)), x});
        constexpr std::string_view kOps[] = {"add", "mul", "sub", "maximum", "eq", "lt", "bitwise_and", "bitwise_xor"};
        return b_.add(pick(kOps), {x, beside(x)});
      }
      case 9: {
        const TensorId rng =
            rng_.valid() ? rng_ : b_.graph().add_input({InputKind::kRng, "", {}, {}, 0}, {DType::kI64, {2}});
        rng_ = rng;
        return b_.add(below(2) == 0 ? "random_uniform" : "random_normal", {rng},
                      {{"shape", shape}, {"dtype", DType::kF32}, {"stream", static_cast<int64_t>(below(3))}});
      }
      default: {
        if (rank == 0 || shape[dim] == 0) return {};
        const TensorId index = b_.add("iota", {}, {{"shape", Shape{3}}, {"dtype", DType::kI64}, {"dim", int64_t{0}}});
        const TensorId safe = b_.add("minimum", {index, b_.full(static_cast<double>(shape[dim] - 1), DType::kI64)});
        return b_.add("take", {x, safe}, {{"dim", static_cast<int64_t>(dim)}});
      }
    }
  }

  std::mt19937_64 random_;
  GraphBuilder b_;
  Shape shape_;
  std::vector<TensorId> values_;
  TensorId rng_;
};

// By tensor, of how many elements it chooses, by itself or through views, casts and choices; else 7.
inline std::vector<int64_t> choices_of(const Graph& graph) {
  constexpr std::string_view kIndexed[] = {"gather", "scatter", "scatter_add", "take", "put", "put_add"};
  std::vector<int64_t> choices(graph.tensors.size(), 7);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const auto put = [&](size_t operand, int64_t most) {
      int64_t& have = choices[node.inputs[operand].index()];
      have = std::min(have, most);
    };
    if (std::ranges::find(kIndexed, node.op) != std::end(kIndexed))
      put(1, graph.shape(node.inputs[0])[static_cast<size_t>(node.attrs.get<int64_t>("dim"))]);
    for (size_t operand = 0; operand < node.inputs.size(); ++operand)
      if (node.inputs.size() == 1 || node.op == "where") put(operand, choices[node.outputs[0].index()]);
  }
  return choices;
}

// By tensor, whether it is a term of a sum, or a factor of one, that is under a root or divides: as an optimizer's
// second moments are. Terms of both signs would cancel there, and what is left of them would be their rounding.
inline std::vector<bool> have_one_sign(const Graph& graph) {
  enum Place : uint8_t { kElsewhere, kUnder, kTermUnder };
  std::vector<Place> places(graph.tensors.size(), kElsewhere);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const auto put = [&](size_t operand, Place place) {
      Place& have = places[node.inputs[operand].index()];
      have = std::max(have, place);
    };
    if (node.op == "sqrt" || node.op == "rsqrt" || node.op == "reciprocal") put(0, kUnder);
    if (node.op == "div") put(1, kUnder);
    const Place place = places[node.outputs[0].index()];
    const bool is_product = node.op == "div" || (node.op == "mul" && node.inputs[0] != node.inputs[1]);
    const bool is_sum = node.op == "add" || node.op == "sum";
    if (place == kElsewhere || !(is_sum || is_product || node.op == "cast" || is_view(node))) continue;
    for (size_t operand = 0; operand < node.inputs.size(); ++operand) put(operand, is_sum ? kTermUnder : place);
  }
  std::vector<bool> out(places.size());
  for (size_t id = 0; id < out.size(); ++id) out[id] = places[id] == kTermUnder;
  return out;
}

inline std::vector<Array> random_arrays(const Graph& graph, uint64_t seed, bool specials) {
  std::mt19937_64 random(seed);
  constexpr double kSpecial[] = {-0.0, 0.0, std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()};
  const std::vector<int64_t> choices = choices_of(graph);
  const std::vector<bool> one_sign = have_one_sign(graph);
  std::vector<Array> out;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    const auto most = static_cast<uint64_t>(std::max<int64_t>(1, choices[input.tensor.index()]));
    for (int64_t i = 0; i < array.count(); ++i) {
      if (!array.is_real())
        array.set(i, static_cast<int64_t>(random() % most));
      else if (specials && random() % 8 == 0)
        array.set(i, kSpecial[random() % std::size(kSpecial)]);
      else
        array.set(i, static_cast<double>(static_cast<int64_t>(random() % 4001) - 2000) / 512);
      if (array.is_real() && one_sign[input.tensor.index()])
        array.set(i, std::abs(array.reals[static_cast<size_t>(i)]));
    }
    // Where a stride is 0 all elements along it are one.
    for (size_t d = 0; d < input.strides.size(); ++d) {
      if (input.strides[d] != 0) continue;
      const Shape strides = contiguous_strides(array.type.shape);
      Array same = array;
      for_each_index(array.type.shape,
                     [&](const Shape& index, int64_t i) { copy_element(same, i, array, i - index[d] * strides[d]); });
      array = same;
    }
    out.push_back(std::move(array));
  }
  return out;
}

// A group reads what its program's inputs look like: their strides and offsets come with them.
inline GroupGraph group_with_windows(const Graph& program, uint32_t number) {
  std::vector<GroupGraph> groups = extract_groups(program);
  GroupGraph& group = *std::ranges::find(groups, number, &GroupGraph::group);
  for (size_t i = 0; i < group.inputs.size(); ++i) {
    const GraphTensor& tensor = program.tensors[group.inputs[i].index()];
    if (tensor.producer.valid()) continue;
    group.graph.inputs[i].strides = program.inputs[tensor.place].strides;
    group.graph.inputs[i].offset = program.inputs[tensor.place].offset;
  }
  return group;
}

// Every group of a random program that returns something, and what it is given.
template <class F>
void for_each_random_group(uint64_t seed, F&& f) {
  const Graph program = RandomProgram(seed).graph();
  uint32_t groups = 0;
  for (const Node& node : program.nodes)
    if (node.group) groups = std::max(groups, *node.group + 1);
  for (uint32_t number = 0; number < groups; ++number) {
    const GroupGraph group = group_with_windows(program, number);
    if (!group.outputs.empty()) f(group.graph, random_arrays(group.graph, seed, seed % 3 == 0));
  }
}

}  // namespace stepc
