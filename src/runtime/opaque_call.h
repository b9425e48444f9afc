// An opaque node's ATen call: its arguments from the node's inputs, its results to the node's outputs.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "ir/graph.h"

namespace stepc {

// Whether a node's input, with these sizes and strides, has to be copied before the call: its kernel may count on the
// layout that the input had when the call was recorded.
bool needs_layout(const AtenCall& call, size_t input, const at::Tensor& tensor);

class OpaqueCall {
 public:
  // Throws UserError when this LibTorch has no such operator.
  explicit OpaqueCall(const Node& node);

  // The node's outputs: fresh results, then the new contents of what the call writes. `targets`, by output: where those
  // are left, perhaps in the written input's own memory; none: in new memory.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& targets = {}) const;

 private:
  c10::OperatorHandle op_;
  AtenCall call_;
};

}  // namespace stepc
