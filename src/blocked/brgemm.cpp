#include "blocked/brgemm.h"

#include <algorithm>
#include <atomic>

namespace stepc::blocked {

namespace {

template <class T>
void run(Brgemm<T> brgemm, const RowTable& rows, const BlockSize& size, const T* a, int64_t lda, const T* b,
         int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  if (size.rows == 0 || size.columns == 0) return;
  if (brgemm != nullptr && size.depth > 0) {
    brgemm(size, a, lda, b, ldb, c, ldc, accumulate);
  } else {
    rows.of<T>().multiply(size.rows, size.columns, size.depth, a, lda, b, ldb, c, ldc, accumulate);
  }
}

}  // namespace

void BlockProduct::operator()(const BlockSize& size, const Bf16* a, int64_t lda, const Bf16* b, int64_t ldb, float* c,
                              int64_t ldc, bool accumulate) const {
  run(kernels_.bf16, rows_, size, a, lda, b, ldb, c, ldc, accumulate);
}
void BlockProduct::operator()(const BlockSize& size, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                              int64_t ldc, bool accumulate) const {
  run(kernels_.f32, rows_, size, a, lda, b, ldb, c, ldc, accumulate);
}

int workers_for(double flops, int64_t tasks, int threads) {
  constexpr double kFewest = 256 * 1024;  // flops of a worker: some microseconds of one core
  const double worth = std::clamp(flops / kFewest, 1.0, static_cast<double>(std::max(threads, 1)));
  return static_cast<int>(std::min(static_cast<int64_t>(worth), std::max<int64_t>(tasks, 1)));
}

void for_tasks(const MicroKernels& kernels, int threads, int64_t tasks,
               const std::function<void(int worker, int64_t task)>& body) {
  std::atomic<int64_t> next{0};  // relaxed: no task waits for what another wrote, and ThreadSanitizer holds it to that
  const auto take_next = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
  const auto work = [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      for (int64_t task = take_next(); task < tasks; task = take_next()) body(static_cast<int>(worker), task);
    }
    if (kernels.release != nullptr) kernels.release();
  };
  const int64_t workers = std::min<int64_t>(std::max(threads, 1), tasks);
  if (workers > 1 && kernels.parallel != nullptr) {
    kernels.parallel(workers, work);
  } else {
    work(0, workers);
  }
}

}  // namespace stepc::blocked
