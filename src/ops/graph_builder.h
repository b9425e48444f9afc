// GraphBuilder: appends nodes to a Graph, with attributes completed and output types inferred from the op table. The
// short forms skip what would change nothing (a cast to the same dtype, a reshape to the same shape).
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace stepc {

class GraphBuilder {
 public:
  explicit GraphBuilder(Graph graph = {}) : graph_(std::move(graph)) {}

  // Stamped on every node from now on.
  void set_source(Source source) { source_ = std::move(source); }
  [[nodiscard]] const Source& source() const { return source_; }

  std::vector<TensorId> add_all(std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {});
  TensorId add(std::string_view op, std::vector<TensorId> inputs, Attrs attrs = {});  // an op with one output
  // An opaque node, as it is.
  std::vector<TensorId> add_aten(Node node, const std::vector<TensorType>& types);

  TensorId full(double value, DType dtype, Shape shape = {});
  TensorId cast(TensorId x, DType dtype);
  TensorId reshape(TensorId x, const Shape& shape);
  TensorId transpose(TensorId x, const Shape& permutation);
  TensorId expand(TensorId x, const Shape& shape);
  TensorId slice(TensorId x, const Shape& starts, const Shape& sizes, const Shape& steps);
  TensorId sum(TensorId x, const Shape& dims, bool keepdim = false);

  // By value: building moves the graph's tensors.
  [[nodiscard]] TensorType type(TensorId id) const { return graph_.type(id); }
  [[nodiscard]] Shape shape(TensorId id) const { return graph_.shape(id); }
  [[nodiscard]] DType dtype(TensorId id) const { return graph_.type(id).dtype; }

  Graph& graph() { return graph_; }
  Graph take() { return std::move(graph_); }

 private:
  Graph graph_;
  Source source_;
};

}  // namespace stepc
