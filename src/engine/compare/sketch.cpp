#include "engine/compare/sketch.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "engine/compare/tensor_hash.h"

namespace stepc {

namespace {

constexpr int64_t kSums = 1024;
constexpr int64_t kBits = 64;

// splitmix64: pseudorandom, and the same in every run.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// By eight bits: the signs of eight neighbouring elements as factors.
const std::array<std::array<double, 8>, 256>& factors() {
  static const auto kFactors = [] {
    std::array<std::array<double, 8>, 256> all{};
    for (size_t byte = 0; byte < all.size(); ++byte)
      for (size_t bit = 0; bit < 8; ++bit) all[byte][bit] = ((byte >> bit) & 1) != 0 ? 1 : -1;
    return all;
  }();
  return kFactors;
}

// Adds element i of the tensor, which is element i - first of `from`, to sum i modulo kSums. One word of signs serves
// kBits neighbours.
template <class T>
void add_up(const T* from, int64_t first, int64_t count, std::vector<double>& sums) {
  at::parallel_for(0, kSums / kBits, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row * kSums < count; ++row)
      for (int64_t word = begin; word < end; ++word) {
        const int64_t next = row * kSums + word * kBits;
        const uint64_t signs = mixed(static_cast<uint64_t>(first + next));
        const int64_t bits = std::min(kBits, count - next);
        double* const to = sums.data() + word * kBits;
        int64_t bit = 0;
        for (; bit + 8 <= bits; bit += 8) {
          const std::array<double, 8>& factor = factors()[(signs >> bit) & 0xff];
          for (int64_t k = 0; k < 8; ++k)
            to[bit + k] += factor[static_cast<size_t>(k)] * static_cast<double>(from[next + bit + k]);
        }
        for (; bit < bits; ++bit) to[bit] += factors()[(signs >> bit) & 1][0] * static_cast<double>(from[next + bit]);
      }
  });
}

}  // namespace

Sketch::Sketch(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const bool is_wide = tensor.is_floating_point() && tensor.element_size() > 1;  // not the float8 types
  if (!is_wide) {
    kind_ = Kind::kHash;
    hash_ = hash_of(tensor);
    return;
  }
  const at::Tensor dense = tensor.detach().contiguous();
  add(dense, 0, dense.numel());
}

void Sketch::add(const at::Tensor& chunk, int64_t first, int64_t count) {
  INTERNAL_CHECK_EQ(first % kSums, 0, "a chunk begins in the midst of the sums");
  if (first == 0) {
    kind_ = Kind::kSums;
    sums_ = std::make_shared<std::vector<double>>(count <= kSums ? 0 : kSums);
  }
  const int64_t here = chunk.numel();
  const at::Tensor on_host = chunk.to(at::kCPU);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, chunk.scalar_type(), "sketch", [&] {
    const auto* from = on_host.const_data_ptr<scalar_t>();
    if (count <= kSums)
      for (int64_t i = 0; i < here; ++i) sums_->push_back(static_cast<double>(from[i]));
    else
      add_up(from, first, here, *sums_);
  });
  if (count <= kSums || first + here < count) return;
  const double scale = std::sqrt(static_cast<double>(kSums) / static_cast<double>(count));
  for (double& sum : *sums_) sum *= scale;
}

void Sketch::show(const at::Tensor& left, int64_t first, int64_t count) {
  if (first == 0 && left.numel() == count)
    *this = Sketch(left);
  else
    add(left, first, count);
}

at::Tensor Sketch::values() const {
  switch (kind_) {
    case Kind::kNothing:
      return {};
    case Kind::kHash:
      return at::full({1}, static_cast<int64_t>(hash_), at::kLong);
    case Kind::kSums:
      break;
  }
  return at::from_blob(
      sums_->data(), {static_cast<int64_t>(sums_->size())}, [kept = sums_](void*) {}, at::kDouble);
}

}  // namespace stepc
