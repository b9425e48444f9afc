// A group of products of one left operand, with what finishes them, as one blocked call on tensors.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "blocked/matmul.h"
#include "codegen/codegen.h"
#include "ir/graph.h"
#include "loops/product_tail.h"
#include "runtime/blocked_matmul.h"

namespace stepc {

// The kernels that finish the tiles of such a group, of every size that its tiles have.
std::vector<LoopProgram> tail_programs(const Graph& group);

class ProductsCall {
 public:
  // `group`, one of extract_groups(), is_products(); its inputs' strides are those that run() will see. Throws where
  // there is no blocked call for it.
  ProductsCall(const Graph& group, KernelCompiler& compiler, const blocked::MicroKernels& kernels, int threads);

  // `outputs` are contiguous memory to write to, an input's only where may_share() says so. `scratch`: so many bytes.
  void run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, std::byte* scratch) const;
  [[nodiscard]] uint64_t scratch_bytes() const {
    return matmul_bytes_ + static_cast<uint64_t>(threads_) * worker_bytes_ + shares_bytes_;
  }
  [[nodiscard]] bool finishes() const { return tail_.has_value(); }

  // Whether output `output` may be written to the memory of input `input`.
  [[nodiscard]] bool may_share(size_t input, size_t output) const;

 private:
  struct Operands {  // among the group's inputs
    size_t left = 0, right = 0;
  };
  struct TileRun;

  void make_tail(const Graph& group, KernelCompiler& compiler);
  [[nodiscard]] std::vector<blocked::Product> products_without_data() const;
  [[nodiscard]] blocked::Matmul matmul_of(const std::vector<blocked::Product>& products) const;
  void finish(std::span<const blocked::TileRef> tiles, int worker, const TileRun& run) const;
  [[nodiscard]] const Kernel& kernel_for(const blocked::TileRef& tile) const;
  [[nodiscard]] int64_t tiles() const;
  void add_up_shares(const std::vector<at::Tensor>& outputs, const float* shares) const;

  blocked::MicroKernels kernels_;
  int threads_;
  std::vector<BoundMatmul> products_;
  std::vector<Operands> operands_;                             // by product
  std::optional<ProductTail> tail_;                            // of whole tiles; none: each product is an output
  std::array<std::shared_ptr<const Kernel>, 4> tail_kernels_;  // by tile_kind()
  // Of the scratch memory, in this order: the product's, each worker's for tail kernels, and the tiles' shares of sums.
  uint64_t matmul_bytes_ = 0, worker_bytes_ = 0, shares_bytes_ = 0;
};

}  // namespace stepc
