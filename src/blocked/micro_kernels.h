// MicroKernels: what a machine gives the blocked kernels, passed to every one of them: its products of blocks, its pool
// of threads, AVX-512. What is missing is replaced by plain loops, so the kernels are right everywhere and fast where
// everything is there. Results and workspace sizes do not depend on the pool, workspace sizes on nothing of it.
#pragma once

#include <cstdint>
#include <functional>

#include "blocked/number.h"

namespace stepc::blocked {

struct BlockSize {
  int64_t rows, columns, depth;
};

// C = [C +] A B on one thread. A is row-major; B is in pairs (row_kernels.h), depth is even for bf16.
template <class T>
using Brgemm = void (*)(const BlockSize& size, const T* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
                        bool accumulate);

struct MicroKernels {
  Brgemm<Bf16> bf16 = nullptr;
  Brgemm<float> f32 = nullptr;
  void (*release)() = nullptr;  // gives back what bf16 products hold of the calling thread: its tile registers
  // Runs body(first, last) over parts of [0, workers), each on a thread of the pool; null: all on the calling thread.
  void (*parallel)(int64_t workers, const std::function<void(int64_t first, int64_t last)>& body) = nullptr;
  bool avx512 = false;  // AVX-512 F, BW, DQ, VL and BF16: row work (packing, softmax, epilogues)
  bool intel = false;   // the CPU that the library's own f32 products (MKL) are written for

  bool operator==(const MicroKernels&) const = default;
};

// Runs each product of blocks once, on odd and on even blocks, and holds the result against a plain loop. The answer
// lacks what throws or is wrong. Reads no timer.
MicroKernels without_wrong_ones(MicroKernels kernels);

}  // namespace stepc::blocked
