// A group of nodes as one generated kernel on tensors.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "codegen/codegen.h"
#include "ir/graph.h"

namespace stepc {

class KernelCall {
 public:
  // `group` is an extract_group(). Throws where no kernel can be made of it.
  KernelCall(const Graph& group, KernelCompiler& compiler);

  // `outputs` are undefined, to be made here, or contiguous memory to write to: an input's where may_share() says so.
  void run(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>& outputs) const;

  // Whether the kernel may write output `output` to the memory of its input `input`.
  [[nodiscard]] bool may_share(size_t input, size_t output) const;

 private:
  std::shared_ptr<const Kernel> kernel_;
  std::vector<TensorType> outputs_;
};

}  // namespace stepc
