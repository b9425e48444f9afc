#include "blocked/brgemm.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

namespace stepc::blocked {

namespace {

void run_brgemm(const BlockSize& size, const Bf16* a, int64_t lda, const Bf16* b, int64_t ldb, float* c, int64_t ldc,
                bool accumulate) {
  static_assert(sizeof(Bf16) == sizeof(at::BFloat16));
  at::native::cpublas::brgemm(size.rows, size.columns, size.depth, lda, ldb, ldc, accumulate,
                              reinterpret_cast<const at::BFloat16*>(a), reinterpret_cast<const at::BFloat16*>(b), c,
                              /*is_vnni=*/true);
}
void run_brgemm(const BlockSize& size, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                bool accumulate) {
  at::native::cpublas::brgemm(size.rows, size.columns, size.depth, lda, ldb, ldc, accumulate, a, b, c,
                              /*is_vnni=*/false);
}

template <class T>
void run(bool exists, const RowTable& rows, const BlockSize& size, const T* a, int64_t lda, const T* b, int64_t ldb,
         float* c, int64_t ldc, bool accumulate) {
  if (size.rows == 0 || size.columns == 0) return;
  if (exists && size.depth > 0) {
    run_brgemm(size, a, lda, b, ldb, c, ldc, accumulate);
  } else {
    rows.of<T>().multiply(size.rows, size.columns, size.depth, a, lda, b, ldb, c, ldc, accumulate);
  }
}

// Small integers: every sum is exact, so right means equal.
template <class T>
bool is_right(const BlockSize& size) {
  const int64_t lda = size.depth + 32;
  constexpr int64_t kLdb = 64, kLdc = 80;
  std::vector<T> a(static_cast<size_t>(size.rows * lda)), b(static_cast<size_t>(size.depth * kLdb));
  for (size_t i = 0; i < a.size(); ++i) a[i] = from_float<T>(static_cast<float>(i * 7 % 11) - 5);
  for (size_t i = 0; i < b.size(); ++i) b[i] = from_float<T>(static_cast<float>(i * 5 % 13) - 6);
  std::vector<float> got(static_cast<size_t>(size.rows * kLdc), 3), expected = got;
  const RowTable plain = generic_rows();
  try {
    for (const bool accumulate : {false, true}) {
      run_brgemm(size, a.data(), lda, b.data(), kLdb, got.data(), kLdc, accumulate);
      plain.of<T>().multiply(size.rows, size.columns, size.depth, a.data(), lda, b.data(), kLdb, expected.data(), kLdc,
                             accumulate);
    }
    at::native::cpublas::brgemm_release(kNumberOf<T> == Number::kBf16);
  } catch (const std::exception&) {
    return false;  // LibTorch throws where its micro-kernel is not supported
  }
  return got == expected;
}

template <class T>
bool exists() {
  return is_right<T>({32, 64, 64}) && is_right<T>({5, 48, 2}) && is_right<T>({128, 64, 96});
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
}

}  // namespace

MicroKernels probe_micro_kernels() {
  return {exists<Bf16>(), exists<float>(), has_avx512(), __builtin_cpu_is("intel") != 0};
}

std::string to_text(const MicroKernels& kernels) {
  std::string text;
  for (const auto& [there, name] :
       {std::pair{kernels.bf16, "bf16"}, std::pair{kernels.f32, "f32"}, std::pair{kernels.avx512, "avx512"}}) {
    if (there) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text.empty() ? "none" : text;
}

void BlockProduct::operator()(const BlockSize& size, const Bf16* a, int64_t lda, const Bf16* b, int64_t ldb, float* c,
                              int64_t ldc, bool accumulate) const {
  run(kernels_.bf16, rows_, size, a, lda, b, ldb, c, ldc, accumulate);
}
void BlockProduct::operator()(const BlockSize& size, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                              int64_t ldc, bool accumulate) const {
  run(kernels_.f32, rows_, size, a, lda, b, ldb, c, ldc, accumulate);
}

void for_tasks(const MicroKernels& kernels, int threads, int64_t tasks,
               const std::function<void(int worker, int64_t task)>& body) {
  std::atomic<int64_t> next{0};  // relaxed: no task waits for what another wrote, and ThreadSanitizer holds it to that
  const auto take_next = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
  const int64_t workers = std::min<int64_t>(std::max(threads, 1), tasks);
  at::parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      for (int64_t task = take_next(); task < tasks; task = take_next()) body(static_cast<int>(worker), task);
    }
    if (kernels.bf16) at::native::cpublas::brgemm_release(true);
  });
}

}  // namespace stepc::blocked
