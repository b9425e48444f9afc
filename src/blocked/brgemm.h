// The seam to LibTorch: products of blocks through at::native::cpublas::brgemm, threads through at::parallel_for.
// Internal to blocked/; brgemm.cpp alone includes LibTorch.
#pragma once

#include <cstdint>
#include <functional>

#include "blocked/micro_kernels.h"
#include "blocked/row_kernels.h"

namespace stepc::blocked {

struct BlockSize {
  int64_t rows, columns, depth;
};

// C = [C +] A B on one thread. A is row-major; B is in pairs (row_kernels.h), depth is even for bf16. Falls back to a
// plain loop where the micro-kernel is missing.
class BlockProduct {
 public:
  BlockProduct(const MicroKernels& kernels, const RowTable& rows) : kernels_(kernels), rows_(rows) {}

  void operator()(const BlockSize& size, const Bf16* a, int64_t lda, const Bf16* b, int64_t ldb, float* c, int64_t ldc,
                  bool accumulate) const;
  void operator()(const BlockSize& size, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                  int64_t ldc, bool accumulate) const;

 private:
  MicroKernels kernels_;
  const RowTable& rows_;
};

// Runs body(worker, task) for every task on at most `threads` threads of LibTorch's pool; workers take the next task in
// turn, so a body's result may depend on the task alone, and on `worker` only to find scratch memory. Tile registers
// are released at the end.
void for_tasks(const MicroKernels& kernels, int threads, int64_t tasks,
               const std::function<void(int worker, int64_t task)>& body);

}  // namespace stepc::blocked
