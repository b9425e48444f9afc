// Rewriter: the base of every pass. Walks an old Graph in order and builds the new one: keeps a node, or builds
// something else and names the new tensor that replaces the old one.
//
//   Rewriter r(graph);
//   for (const Node& node : graph.nodes) {
//     if (is_identity(node)) r.replace(node.outputs[0], r[node.inputs[0]]);
//     else r.keep(node);
//   }
//   return r.finish();
#pragma once

#include <vector>

#include "ops/graph_builder.h"

namespace stepc {

class Rewriter {
 public:
  // `old` must outlive the rewriter. Copies the inputs, without those for which `drop` is true.
  explicit Rewriter(const Graph& old, const std::vector<bool>& drop = {});

  // The new tensor that stands for an old one.
  TensorId operator[](TensorId old) const;
  [[nodiscard]] std::vector<TensorId> inputs_of(const Node& node) const;

  // Copies the node unchanged, on the new tensors; returns its new outputs.
  const std::vector<TensorId>& keep(const Node& node);
  // The new tensor must have the old one's type.
  void replace(TensorId old, TensorId now);
  void replace(const std::vector<TensorId>& old, const std::vector<TensorId>& now);

  // For building: new nodes get the source of the present node, which keep() and at() set.
  GraphBuilder& b() { return builder_; }
  void at(const Node& node) { builder_.set_source(node.source); }

  // Adds the old outputs, on the new tensors.
  Graph finish();

 private:
  const Graph& old_;
  GraphBuilder builder_;
  std::vector<TensorId> now_;           // by old tensor
  std::vector<uint32_t> input_places_;  // by old input
};

}  // namespace stepc
