#include "passes/split_collectives.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

class Splitter {
 public:
  Splitter(const Graph& graph, uint64_t least_bytes, bool reduces_on_the_way)
      : graph_(graph), least_bytes_(least_bytes), reduces_on_the_way_(reduces_on_the_way), r_(graph) {}

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (!is_split(node)) {
        r_.keep(node);
        continue;
      }
      r_.at(node);
      r_.replace(node.outputs, results_of(node));
    }
    return r_.finish();
  }

 private:
  [[nodiscard]] bool is_split(const Node& node) const {
    const Collective collective = collective_of(node);
    if (!exchanges(collective)) return false;
    int64_t bytes = 0;
    for (const auto* tensors : {&node.inputs, &node.outputs})
      for (TensorId tensor : *tensors) bytes = std::max(bytes, stepc::bytes_of(graph_.type(tensor)));
    if (static_cast<uint64_t>(bytes) < least_bytes_) return false;
    const bool reduces = collective == Collective::kReduceScatter || collective == Collective::kAllReduce;
    if (reduces && node.attrs.get<std::string>("reduce") != name_of(ReduceOp::kSum)) return false;
    const auto has_parts = [&](TensorId operand) {
      return element_count(graph_.shape(operand)) % node.attrs.get<int64_t>("ranks") == 0;
    };
    return collective != Collective::kAllReduce || std::ranges::all_of(node.inputs, has_parts);
  }

  std::vector<TensorId> results_of(const Node& node) {
    const std::vector<TensorId> operands = r_.inputs_of(node);
    switch (collective_of(node)) {
      case Collective::kReduceScatter:
        return reduced(node, operands);
      case Collective::kAllReduce:
        return all_reduced(node, operands);
      default:
        return awaited(b().add_all(node.op, operands, node.attrs), operands);
    }
  }
  std::vector<TensorId> all_reduced(const Node& node, const std::vector<TensorId>& operands) {
    const int64_t ranks = node.attrs.get<int64_t>("ranks");
    std::vector<TensorId> parts;
    for (TensorId operand : operands)
      parts.push_back(b().reshape(operand, {ranks, element_count(b().shape(operand)) / ranks}));
    const std::vector<TensorId> sums = reduced(node, parts);
    std::vector<TensorId> whole = awaited(b().add_all("all_gather", sums, group_of(node)), sums);
    for (size_t k = 0; k < whole.size(); ++k) whole[k] = b().reshape(whole[k], b().shape(operands[k]));
    return whole;
  }

  // The end of an exchange of `operands`, which has `flying` on its way.
  std::vector<TensorId> awaited(std::vector<TensorId> flying, const std::vector<TensorId>& operands) {
    flying.insert(flying.end(), operands.begin(), operands.end());
    return b().add_all("wait", flying);
  }
  // Of operands in a part for each rank: this rank's, summed.
  std::vector<TensorId> reduced(const Node& node, const std::vector<TensorId>& parts) {
    if (!reduces_on_the_way_) return summed(shared_out(parts, group_of(node)));
    return awaited(b().add_all("reduce_scatter", parts, node.attrs), parts);
  }
  std::vector<TensorId> shared_out(const std::vector<TensorId>& operands, const Attrs& group) {
    return awaited(b().add_all("all_to_all", operands, group), operands);
  }
  // Of what lies in a part for each rank along the leading dimension.
  std::vector<TensorId> summed(std::vector<TensorId> parts) {
    for (TensorId& tensor : parts) {
      const DType dtype = b().dtype(tensor);
      const bool is_narrow = is_floating(dtype) && size_of(dtype) < size_of(DType::kF32);
      tensor = b().cast(b().sum(is_narrow ? b().cast(tensor, DType::kF32) : tensor, {0}), dtype);
    }
    return parts;
  }
  static Attrs group_of(const Node& node) {
    return {{"axes", node.attrs.get<Shape>("axes")}, {"ranks", node.attrs.get<int64_t>("ranks")}};
  }
  GraphBuilder& b() { return r_.b(); }

  const Graph& graph_;
  const uint64_t least_bytes_;
  const bool reduces_on_the_way_;
  Rewriter r_;
};

}  // namespace

Graph split_collectives(const Graph& graph, uint64_t least_bytes, bool reduces_on_the_way) {
  return Splitter(graph, least_bytes, reduces_on_the_way).run();
}

}  // namespace stepc
