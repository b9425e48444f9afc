#include "runtime/micro_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include "cost/host_features.h"

namespace stepc {

namespace {
using blocked::Bf16;
using blocked::BlockSize;

void brgemm_bf16(const BlockSize& size, const Bf16* a, int64_t lda, const Bf16* b, int64_t ldb, float* c, int64_t ldc,
                 bool accumulate) {
  static_assert(sizeof(Bf16) == sizeof(at::BFloat16));
  at::native::cpublas::brgemm(size.rows, size.columns, size.depth, lda, ldb, ldc, accumulate,
                              reinterpret_cast<const at::BFloat16*>(a), reinterpret_cast<const at::BFloat16*>(b), c,
                              /*is_vnni=*/true);
}
void brgemm_f32(const BlockSize& size, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                bool accumulate) {
  at::native::cpublas::brgemm(size.rows, size.columns, size.depth, lda, ldb, ldc, accumulate, a, b, c,
                              /*is_vnni=*/false);
}

void release_tiles() { at::native::cpublas::brgemm_release(/*is_vnni=*/true); }

void run_on_pool(int64_t workers, const std::function<void(int64_t first, int64_t last)>& body) {
  at::parallel_for(0, workers, 1, body);
}

}  // namespace

blocked::MicroKernels probe_micro_kernels() {
  const Features cpu = host_features();
  return blocked::without_wrong_ones({.bf16 = brgemm_bf16,
                                      .f32 = brgemm_f32,
                                      .release = release_tiles,
                                      .parallel = run_on_pool,
                                      .avx512 = cpu.avx512,
                                      .intel = cpu.intel});
}

Features features_of(const blocked::MicroKernels& kernels) {
  return {
      .bf16 = kernels.bf16 != nullptr, .f32 = kernels.f32 != nullptr, .avx512 = kernels.avx512, .intel = kernels.intel};
}

}  // namespace stepc
