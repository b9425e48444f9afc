// Products of blocks and tasks on threads, with what MicroKernels give or without. Internal to blocked/.
#pragma once

#include <cstdint>
#include <functional>

#include "blocked/micro_kernels.h"
#include "blocked/row_kernels.h"

namespace stepc::blocked {

// A Brgemm of either type; a plain loop where the micro-kernel is missing.
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

// How many threads work on `tasks` that are so much work together: one that would do less than it costs to wake stays
// away, and needs no scratch memory.
int workers_for(double flops, int64_t tasks, int threads);

// Runs body(worker, task) for every task on at most `threads` threads of the pool; workers take the next task in turn,
// so a body's result may depend on the task alone, and on `worker` only to find scratch memory. Tile registers are
// released at the end.
void for_tasks(const MicroKernels& kernels, int threads, int64_t tasks,
               const std::function<void(int worker, int64_t task)>& body);

}  // namespace stepc::blocked
