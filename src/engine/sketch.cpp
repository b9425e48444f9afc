#include "engine/sketch.h"

#include <algorithm>
#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "engine/tensor_hash.h"

namespace stepc {

namespace {

constexpr int64_t kSums = 1024;
constexpr int64_t kBits = 64;

// splitmix64: as good as drawn, and the same in every run.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Element i goes to sum i modulo kSums; a word of signs serves kBits neighbours.
template <class T>
void add_up(const T* from, int64_t count, std::vector<double>& sums) {
  at::parallel_for(0, kSums / kBits, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row * kSums < count; ++row)
      for (int64_t word = begin; word < end; ++word) {
        const int64_t first = row * kSums + word * kBits;
        const uint64_t signs = mixed(static_cast<uint64_t>(first));
        const int64_t bits = std::min(kBits, count - first);
        double* const to = sums.data() + word * kBits;
        for (int64_t bit = 0; bit < bits; ++bit) {
          const auto value = static_cast<double>(from[first + bit]);
          to[bit] += ((signs >> bit) & 1) != 0 ? value : -value;
        }
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
  kind_ = Kind::kSums;
  sums_ = std::make_shared<std::vector<double>>();
  const at::Tensor dense = tensor.detach().contiguous();
  const int64_t count = dense.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, dense.scalar_type(), "sketch", [&] {
    const auto* from = dense.const_data_ptr<scalar_t>();
    if (count <= kSums) {
      for (int64_t i = 0; i < count; ++i) sums_->push_back(static_cast<double>(from[i]));
      return;
    }
    sums_->assign(kSums, 0.0);
    add_up(from, count, *sums_);
  });
  if (count <= kSums) return;
  const double scale = std::sqrt(static_cast<double>(kSums) / static_cast<double>(count));
  for (double& sum : *sums_) sum *= scale;
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
