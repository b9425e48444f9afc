#include "interp/interpret_ranks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/check.h"
#include "interp/evaluate.h"
#include "interp/interpret.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

// Calls f(place in the whole, place in the part) for every element of a rank's part; the former is -1 in padding.
template <class F>
void for_each_of_part(const Sharding& sharding, const Shape& shape, const Mesh& mesh, int64_t rank, F&& f) {
  std::vector<std::vector<int64_t>> places;
  for (size_t d = 0; d < shape.size(); ++d) places.push_back(places_of(sharding.dims[d], shape[d], mesh, rank));
  const Shape strides = contiguous_strides(shape);
  for_each_index(local_shape(sharding, shape, mesh), [&](const Shape& index, int64_t to) {
    int64_t from = 0;
    for (size_t d = 0; d < index.size() && from >= 0; ++d) {
      const int64_t place = places[d][static_cast<size_t>(index[d])];
      from = place < 0 ? -1 : from + place * strides[d];
    }
    f(from, to);
  });
}

void combine(Array& into, int64_t to, const Array& part, int64_t from, ReduceOp op) {
  const auto best = [op](auto a, auto b) {
    if (a != a || b != b) return a + b;  // NaN wins
    return op == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
  };
  if (into.is_real()) {
    const double a = into.real(to), b = part.real(from);
    into.set(to, op == ReduceOp::kSum ? a + b : best(a, b));
  } else {
    const int64_t a = into.integer(to), b = part.integer(from);
    into.set(to, op == ReduceOp::kSum ? a + b : best(a, b));
  }
}
void combine_all(Array& into, const Array& part, int64_t from, ReduceOp op) {
  for (int64_t i = 0; i < into.count(); ++i) combine(into, i, part, from + i, op);
}

// Part `part` of `of` along its leading dimension.
Array part_of(const Array& of, int64_t part) {
  Array out({of.type.dtype, Shape(of.type.shape.begin() + 1, of.type.shape.end())});
  for (int64_t i = 0; i < out.count(); ++i) copy_element(out, i, of, part * out.count() + i);
  return out;
}

// What one rank gets, by the operands of its group, in whose order it is number `own`.
Array collect(const Node& node, const TensorType& type, const std::vector<const Array*>& group, size_t own) {
  const Collective collective = op_def(node.op).collective;
  if (collective == Collective::kAllGather || collective == Collective::kAllToAll) {
    Array out(type);
    const int64_t count = out.count() / static_cast<int64_t>(group.size());
    const int64_t from = collective == Collective::kAllToAll ? static_cast<int64_t>(own) * count : 0;
    for (size_t r = 0; r < group.size(); ++r)
      for (int64_t i = 0; i < count; ++i) copy_element(out, static_cast<int64_t>(r) * count + i, *group[r], from + i);
    return out;
  }
  if (collective == Collective::kRotate)
    return *group[(own + group.size() - static_cast<size_t>(node.attrs.get<int64_t>("by"))) % group.size()];
  const ReduceOp op = *parse_reduce_op(node.attrs.get<std::string>("reduce"));
  const bool scatters = collective == Collective::kReduceScatter;
  INTERNAL_CHECK(scatters || collective == Collective::kAllReduce, "{} is no collective", node.op);
  Array out = scatters ? part_of(*group[0], static_cast<int64_t>(own)) : *group[0];
  const int64_t from = scatters ? static_cast<int64_t>(own) * out.count() : 0;
  for (size_t r = 1; r < group.size(); ++r) combine_all(out, *group[r], from, op);
  return out;
}

std::vector<Axis> axes_of(const Node& node) {
  std::vector<Axis> axes;
  for (int64_t axis : node.attrs.get<std::vector<int64_t>>("axes")) axes.push_back(static_cast<Axis>(axis));
  return axes;
}

}  // namespace

Array local_of(const Array& whole, const Sharding& sharding, const Mesh& mesh, int64_t rank) {
  Array part({whole.type.dtype, local_shape(sharding, whole.type.shape, mesh)});
  const std::vector<int64_t> at = coordinates_of(mesh, rank);
  for (const Partial& one : sharding.partial) {
    INTERNAL_CHECK(one.op == ReduceOp::kSum, "a part of a {}", name_of(one.op));
    if (at[one.axis] != 0) return part;
  }
  for_each_of_part(sharding, whole.type.shape, mesh, rank, [&](int64_t from, int64_t to) {
    copy_element(part, to, whole, from < 0 ? whole.count() - 1 : from);
  });
  return part;
}

Array whole_of(const std::vector<Array>& parts, const Sharding& sharding, const Shape& shape, const Mesh& mesh) {
  Array whole({parts[0].type.dtype, shape});
  const auto is_first = [&](int64_t rank, bool partial) {  // of those that hold the same, or are combined
    const std::vector<int64_t> at = coordinates_of(mesh, rank);
    for (Axis axis = 0; axis < mesh.axes.size(); ++axis)
      if (at[axis] != 0 && !sharding.splits(axis) && sharding.partial_over(axis).has_value() == partial) return false;
    return true;
  };
  // Parts of one place come in the order of ranks: the first is the one at 0 along the partial axes.
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    if (!is_first(rank, false)) continue;
    const Array& part = parts[static_cast<size_t>(rank)];
    INTERNAL_CHECK(part.type.shape == local_shape(sharding, shape, mesh), "rank {} holds a {}", rank,
                   to_text(part.type));
    const bool begins = is_first(rank, true);
    const ReduceOp op = sharding.partial.empty() ? ReduceOp::kSum : sharding.partial[0].op;
    for_each_of_part(sharding, shape, mesh, rank, [&](int64_t to, int64_t from) {
      if (to < 0) return;
      if (begins)
        copy_element(whole, to, part, from);
      else
        combine(whole, to, part, from, op);
    });
  }
  return whole;
}

std::vector<std::vector<Array>> interpret_ranks(const Graph& graph, std::vector<std::vector<Array>> inputs,
                                                const AtenCallFn& aten) {
  const Mesh& mesh = graph.mesh;
  const auto ranks = static_cast<size_t>(mesh.ranks());
  INTERNAL_CHECK_EQ(inputs.size(), ranks);
  std::vector<std::vector<Array>> values(ranks, std::vector<Array>(graph.tensors.size()));
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const TensorId id = graph.inputs[i].tensor;
      Array& value = values[r][id.index()];
      value = std::move(inputs[r][i]);
      if (graph.inputs[i].kind == InputKind::kMesh) {
        value = Array(graph.type(id));
        value.integers = coordinates_of(mesh, static_cast<int64_t>(r));
      }
      INTERNAL_CHECK(value.type == graph.type(id), "input {} of rank {} is {} and the graph's {}", i, r,
                     to_text(value.type), to_text(graph.type(id)));
    }
  std::vector<uint32_t> uses = use_counts(graph);
  for (const Node& node : graph.nodes) {
    USER_CHECK(!node.aten || (aten && !is_host_code(node)),
               "{} (in '{}') is no op of stepc's own and cannot be interpreted", node.op, node.source.module);
    if (exchanges(collective_of(node))) {
      for (size_t r = 0; r < ranks; ++r) {
        const std::vector<int64_t> members = group_of(mesh, axes_of(node), static_cast<int64_t>(r));
        const auto own = static_cast<size_t>(std::ranges::find(members, static_cast<int64_t>(r)) - members.begin());
        for (size_t k = 0; k < node.inputs.size(); ++k) {
          std::vector<const Array*> group;
          for (int64_t rank : members) group.push_back(&values[static_cast<size_t>(rank)][node.inputs[k].index()]);
          values[r][node.outputs[k].index()] = collect(node, graph.type(node.outputs[k]), group, own);
        }
      }
    } else {
      for (size_t r = 0; r < ranks; ++r) {
        std::vector<Array> arguments;
        for (TensorId input : node.inputs) arguments.push_back(values[r][input.index()]);
        std::vector<Array> results =
            node.aten ? aten(node, arguments) : evaluate(op_def(node.op), arguments, node.attrs);
        for (size_t k = 0; k < results.size(); ++k) values[r][node.outputs[k].index()] = std::move(results[k]);
      }
    }
    for (TensorId input : node.inputs)
      if (--uses[input.index()] == 0)
        for (size_t r = 0; r < ranks; ++r) values[r][input.index()] = Array();
  }
  std::vector<std::vector<Array>> outputs(ranks);
  for (size_t r = 0; r < ranks; ++r)
    for (const GraphOutput& output : graph.outputs)
      outputs[r].push_back(output.tensor.valid() ? values[r][output.tensor.index()] : Array());
  return outputs;
}

namespace {
// Where two ranks hold the same element of a tensor, they hold the same value of it; of parts of a sum each its own.
void check_agreement(const std::vector<Array>& parts, const Array& whole, const Sharding& sharding, const Mesh& mesh,
                     size_t output) {
  if (!sharding.partial.empty()) return;
  for (size_t rank = 0; rank < parts.size(); ++rank)
    for_each_of_part(sharding, whole.type.shape, mesh, static_cast<int64_t>(rank), [&](int64_t of, int64_t in) {
      if (of < 0) return;
      const bool same =
          whole.is_real() ? same_bits(whole.reals[static_cast<size_t>(of)], parts[rank].reals[static_cast<size_t>(in)])
                          : whole.integer(of) == parts[rank].integer(in);
      INTERNAL_CHECK(same, "rank {} has another element {} of output {}", rank, of, output);
    });
}
}  // namespace

std::vector<Array> interpret_on_ranks(const Graph& graph, const std::function<Array(const GraphInput&)>& input,
                                      const AtenCallFn& aten) {
  const Mesh& mesh = graph.mesh;
  std::vector<std::vector<Array>> parts(static_cast<size_t>(mesh.ranks()));
  for (const GraphInput& one : graph.inputs) {
    const Array whole = one.kind == InputKind::kMesh ? Array() : input(one);
    for (size_t r = 0; r < parts.size(); ++r)
      parts[r].push_back(one.part ? local_of(whole, one.part->sharding, mesh, static_cast<int64_t>(r)) : whole);
  }
  const std::vector<std::vector<Array>> outputs = interpret_ranks(graph, std::move(parts), aten);
  std::vector<Array> wholes;
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const GraphOutput& output = graph.outputs[o];
    wholes.emplace_back();
    if (!output.tensor.valid()) continue;
    std::vector<Array> of_ranks;
    for (const auto& one : outputs) of_ranks.push_back(one[o]);
    const Shape shape = output.part ? output.part->shape : graph.shape(output.tensor);
    const Sharding sharding = output.part ? output.part->sharding : Sharding::whole(shape.size());
    wholes.back() = whole_of(of_ranks, sharding, shape, mesh);
    check_agreement(of_ranks, wholes.back(), sharding, mesh, o);
  }
  return wholes;
}

double largest_error_on_ranks(const Graph& whole, const Graph& local, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Array> inputs;
  std::map<std::pair<InputKind, std::string>, size_t> places;
  for (const GraphInput& input : whole.inputs) {
    const double least = input.kind == InputKind::kOptimizerState ? 0 : -0.5;
    Array array(whole.type(input.tensor));
    for (int64_t i = 0; i < array.count(); ++i)
      if (array.is_real())
        array.set(i, static_cast<double>(random() % 1000) / 999.0 + least);
      else
        array.set(i, static_cast<int64_t>(random() % 2));
    places[{input.kind, input.key}] = inputs.size();
    inputs.push_back(std::move(array));
  }
  const std::vector<Array> expected = interpret(whole, inputs);
  const std::vector<Array> got = interpret_on_ranks(local, [&](const GraphInput& input) {
    return inputs[places.at({input.kind, input.key})];
  });
  INTERNAL_CHECK_EQ(expected.size(), got.size());
  double largest = 0;
  for (size_t o = 0; o < expected.size(); ++o)
    if (expected[o].count() > 0 && whole.outputs[o].tensor.valid())
      largest = std::max(largest, largest_error(got[o], expected[o]));
  return largest;
}

}  // namespace stepc
