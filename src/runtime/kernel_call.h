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
  // `group` is one of extract_groups(), its inputs' strides those that run() will see. Throws where no kernel can be
  // made of it.
  KernelCall(const Graph& group, KernelCompiler& compiler) : kernel_(compiler.compile(lower(group))) {}

  // `outputs` are contiguous memory to write to, an input's only where may_share() says so. `scratch`: so many bytes.
  void run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, std::byte* scratch) const;
  [[nodiscard]] uint64_t scratch_bytes() const { return static_cast<uint64_t>(kernel_->scratch_bytes); }

  // Whether the kernel may write output `output` to the memory of its input `input`.
  [[nodiscard]] bool may_share(size_t input, size_t output) const;

 private:
  std::shared_ptr<const Kernel> kernel_;
};

}  // namespace stepc
