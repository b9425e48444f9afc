// What the tests of blocked/ share: random matrices in both types with any layout, and machines: what the probe found,
// one where nothing exists, so that every plain path is run too, and what lies between them.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/text.h"
#include "blocked/micro_kernels.h"
#include "blocked/number.h"
#include "runtime/micro_kernels.h"

namespace stepc::blocked {

inline std::vector<MicroKernels> machines() {
  const MicroKernels here = probe_micro_kernels();
  std::vector<MicroKernels> all = {here, {}};
  if (here.avx512) all.push_back({.parallel = here.parallel, .avx512 = true});
  if (here.bf16 != nullptr) all.push_back({here.bf16, here.f32, here.release, here.parallel});
  return all;
}

inline at::ScalarType aten_type(Number number) { return number == Number::kF32 ? at::kFloat : at::kBFloat16; }
inline at::Tensor random_tensor(at::IntArrayRef shape, Number number) { return at::randn(shape).to(aten_type(number)); }

// Cores that others use make a pool of threads wait for long: only the tests of threads have one.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// 64-byte aligned memory full of NaN, in case a kernel reads what it did not write.
inline at::Tensor dirty_memory(size_t bytes) { return at::full({static_cast<int64_t>(bytes)}, 0xff, at::kByte); }

// Relative L2 distance to a float64 reference; absolute where the reference is zero.
inline double distance(const at::Tensor& result, const at::Tensor& reference) {
  const at::Tensor wide = reference.to(at::kDouble);
  const double norm = wide.norm().item<double>();
  return (result.to(at::kDouble) - wide).norm().item<double>() / (norm > 0 ? norm : 1);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }
  template <class T>
  T one_of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(between(0, static_cast<int64_t>(choices.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

inline std::vector<std::byte> bytes_of_tensor(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  const auto* data = static_cast<const std::byte*>(whole.data_ptr());
  return {data, data + whole.nbytes()};
}

}  // namespace stepc::blocked
