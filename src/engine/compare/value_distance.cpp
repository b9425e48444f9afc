#include "engine/compare/value_distance.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"

namespace stepc {

namespace {

struct Sums {
  double square = 0, square_apart = 0;
  bool finite_alike = true;
};

template <class T>
Sums sums_of(const T* first, const T* second, int64_t count) {
  Sums sums;
  for (int64_t i = 0; i < count; ++i) {
    const auto a = static_cast<double>(first[i]);
    const auto b = static_cast<double>(second[i]);
    if (std::isfinite(b)) sums.square += b * b;
    if (std::isfinite(a) && std::isfinite(b)) sums.square_apart += (a - b) * (a - b);
    if (std::isfinite(a) != std::isfinite(b)) sums.finite_alike = false;
  }
  return sums;
}

}  // namespace

ValueDistance value_distance(const at::Tensor& first, const at::Tensor& second) {
  INTERNAL_CHECK(first.sizes() == second.sizes() && first.scalar_type() == second.scalar_type(),
                 "tensors of one type and shape");
  constexpr int64_t kPiece = 1 << 16;  // whose sums are added in their order, whatever thread made them
  const auto readable = [](const at::Tensor& tensor) {
    const bool is_small = tensor.element_size() == 1;  // the float8 types
    return (is_small ? tensor.to(at::kFloat) : tensor).contiguous();
  };
  const at::Tensor a = readable(first), b = readable(second);
  const int64_t count = a.numel();
  std::vector<Sums> pieces(static_cast<size_t>((count + kPiece - 1) / kPiece));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, a.scalar_type(), "value_distance", [&] {
    const auto* from_a = a.const_data_ptr<scalar_t>();
    const auto* from_b = b.const_data_ptr<scalar_t>();
    at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        pieces[static_cast<size_t>(p)] =
            sums_of(from_a + p * kPiece, from_b + p * kPiece, std::min(kPiece, count - p * kPiece));
    });
  });
  ValueDistance distance;
  Sums all;
  for (const Sums& piece : pieces) {
    all.square += piece.square;
    all.square_apart += piece.square_apart;
    distance.finite_alike = distance.finite_alike && piece.finite_alike;
  }
  const auto mean = static_cast<double>(std::max<int64_t>(count, 1));
  distance.rms = std::sqrt(all.square / mean);
  distance.apart = std::sqrt(all.square_apart / mean);
  return distance;
}

}  // namespace stepc
