#include "blocked/micro_kernels.h"

#include <exception>
#include <vector>

#include "blocked/row_kernels.h"

namespace stepc::blocked {

namespace {

// Small integers: every sum is exact, so right means equal.
template <class T>
bool is_right(Brgemm<T> brgemm, const BlockSize& size) {
  const int64_t lda = size.depth + 32;
  constexpr int64_t kLdb = 64, kLdc = 80;
  std::vector<T> a(static_cast<size_t>(size.rows * lda)), b(static_cast<size_t>(size.depth * kLdb));
  for (size_t i = 0; i < a.size(); ++i) a[i] = from_float<T>(static_cast<float>(i * 7 % 11) - 5);
  for (size_t i = 0; i < b.size(); ++i) b[i] = from_float<T>(static_cast<float>(i * 5 % 13) - 6);
  std::vector<float> got(static_cast<size_t>(size.rows * kLdc), 3), expected = got;
  const RowTable plain = generic_rows();
  for (const bool accumulate : {false, true}) {
    brgemm(size, a.data(), lda, b.data(), kLdb, got.data(), kLdc, accumulate);
    plain.of<T>().multiply(size.rows, size.columns, size.depth, a.data(), lda, b.data(), kLdb, expected.data(), kLdc,
                           accumulate);
  }
  return got == expected;
}

template <class T>
bool is_right(Brgemm<T> brgemm) {
  if (brgemm == nullptr) return false;
  try {
    return is_right<T>(brgemm, {32, 64, 64}) && is_right<T>(brgemm, {5, 48, 2}) && is_right<T>(brgemm, {128, 64, 96});
  } catch (const std::exception&) {
    return false;  // so does a library say that it has none for this machine
  }
}

}  // namespace

MicroKernels without_wrong_ones(MicroKernels kernels) {
  const bool bf16 = is_right(kernels.bf16);
  if (bf16 && kernels.release != nullptr) kernels.release();
  if (!bf16) {
    kernels.bf16 = nullptr;
    kernels.release = nullptr;
  }
  if (!is_right(kernels.f32)) kernels.f32 = nullptr;
  return kernels;
}

}  // namespace stepc::blocked
