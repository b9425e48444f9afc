#include "runtime/index_limits.h"

#include <algorithm>
#include <string_view>

#include "ops/op_def.h"
#include "ops/shape_rules.h"
#include "runtime/aten_ops.h"

namespace stepc {

namespace {

// Which operand of an op holds indices, and into what.
struct IndexedOp {
  std::string_view op;
  size_t indices;
  size_t indexed;
  bool ignores;  // one number among them, its attribute "ignore_index"
};
constexpr IndexedOp kIndexedOps[] = {
    {"gather", 1, 0, false},
    {"take", 1, 0, false},
    {"scatter", 1, 0, false},
    {"scatter_add", 1, 0, false},
    {"put", 1, 0, false},
    {"put_add", 1, 0, false},
    {"linear_cross_entropy", 2, 1, true},
};

class Limits {
 public:
  explicit Limits(const GraphPlan& plan) : plan_(plan), graph_(plan.graph) {}

  std::vector<IndexLimit> find() {
    for (const Node& node : graph_.nodes) {
      const auto* row = std::ranges::find(kIndexedOps, node.op, &IndexedOp::op);
      if (row == std::end(kIndexedOps)) continue;
      const Shape& indexed = graph_.shape(node.inputs[row->indexed]);
      const AttrValue* dim = node.attrs.find("dim");
      IndexLimit limit;
      limit.size = indexed[dim == nullptr ? 0 : checked_dim(std::get<int64_t>(*dim), indexed.size())];
      if (row->ignores) limit.ignored = node.attrs.get<int64_t>("ignore_index");
      limit.from = node.inputs[row->indices];
      if (follow(limit) && std::ranges::find(limits_, limit) == limits_.end()) limits_.push_back(limit);
    }
    return std::move(limits_);
  }

 private:
  bool is_there_before_the_run(TensorId tensor) const {
    const Node* node = graph_.producer(tensor);
    if (node == nullptr) return true;
    return plan_.places[tensor.index()].kind == Place::Kind::kView && is_there_before_the_run(node->inputs[0]);
  }

  std::optional<int64_t> constant(TensorId tensor) const {
    const Node* node = graph_.producer(tensor);
    while (node != nullptr && is_view(*node)) node = graph_.producer(node->inputs[0]);
    if (node == nullptr || node->op != "full") return std::nullopt;
    return static_cast<int64_t>(node->attrs.number("value"));
  }

  // Back to where the indices come from; false where they are computed.
  bool follow(IndexLimit& limit) const {
    while (!is_there_before_the_run(limit.from)) {
      const NodeId id = graph_.tensors[limit.from.index()].producer;
      const Node& node = graph_.nodes[id.index()];
      if (node.aten) return false;
      if (is_view(node)) limit.views.push_back(id);
      if (is_view(node) || node.op == "cast") {
        limit.from = node.inputs[0];
      } else if (node.op == "where" && !limit.ignored && leaves_out(node, limit)) {
        limit.from = node.inputs[1];
      } else {
        return false;
      }
    }
    return true;
  }

  // where(targets != ignored, targets, 0), as a loss makes indices of its targets.
  bool leaves_out(const Node& where, IndexLimit& limit) const {
    const Node* unlike = graph_.producer(where.inputs[0]);
    if (unlike == nullptr || unlike->op != "ne" || unlike->inputs[0] != where.inputs[1]) return false;
    limit.ignored = constant(unlike->inputs[1]);
    return limit.ignored.has_value();
  }

  const GraphPlan& plan_;
  const Graph& graph_;
  std::vector<IndexLimit> limits_;
};

template <class Index>
bool all_within(const IndexLimit& limit, const at::Tensor& indices) {
  const at::Tensor dense = indices.contiguous();
  const Index* index = dense.const_data_ptr<Index>();
  return std::all_of(index, index + dense.numel(),
                     [&](Index i) { return (i >= 0 && i < limit.size) || (limit.ignored && i == *limit.ignored); });
}

}  // namespace

std::vector<IndexLimit> index_limits(const GraphPlan& plan) { return Limits(plan).find(); }

at::Tensor indices_of(const IndexLimit& limit, const Graph& graph, at::Tensor from) {
  for (auto view = limit.views.rbegin(); view != limit.views.rend(); ++view) {
    const Node& node = graph.nodes[view->index()];
    from = run_aten_op(node, {from}, {{graph.type(node.inputs[0]).dtype, graph.shape(node.outputs[0])}})[0];
  }
  return from;
}

bool within(const IndexLimit& limit, const at::Tensor& indices) {
  if (indices.scalar_type() == at::kLong) return all_within<int64_t>(limit, indices);
  if (indices.scalar_type() == at::kInt) return all_within<int32_t>(limit, indices);
  return true;  // cast from what cannot be large
}

}  // namespace stepc
