// BatchPart: a part of a step that is cut in time (passes/stages/cut_batch.h), as a Graph of its own: tensors that
// stand for some of the step's, and what is computed of them. Internal to passes/stages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/graph_builder.h"

namespace stepc {

class BatchPart {
 public:
  // `along`: what stands for a node that exchanges along the axis of micro-batches, of its new operand; nothing: there
  // must be none.
  using Along = std::function<TensorId(GraphBuilder& b, const Node& node, TensorId operand)>;
  BatchPart(const Graph& whole, Mesh mesh, Along along = nullptr);

  GraphBuilder& b() { return b_; }
  [[nodiscard]] TensorId operator[](TensorId old) const { return now_[old.index()]; }
  void stand_for(TensorId old, TensorId now) { now_[old.index()] = now; }
  TensorId add_batch(size_t place, const TensorType& type);
  // Memory of the step's own, between its parts, which is one input however often it is asked for; which input.
  uint32_t held(const std::string& key, const TensorType& type);
  TensorId tensor_of(uint32_t input) { return b_.graph().inputs[input].tensor; }
  // An input of the step as it is.
  uint32_t keep_input(uint32_t input);
  // Computes them, of what there is and of the step's inputs.
  void compute(const std::vector<TensorId>& wanted);
  void give_back(TensorId tensor);
  // `input` becomes `tensor`.
  void update(uint32_t input, TensorId tensor);
  Graph take() { return b_.take(); }

 private:
  void add(const Node& node);

  const Graph& whole_;
  Along along_;
  GraphBuilder b_;
  std::vector<TensorId> now_;                      // by tensor of the whole
  std::vector<std::optional<uint32_t>> input_at_;  // by input of the whole
  std::map<std::string, uint32_t> held_at_;        // by key
};

}  // namespace stepc
