#include "cost/rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/check.h"

namespace stepc {

namespace {

template <size_t N>
using Sizes = std::array<double, N>;

template <size_t N>
struct Point {
  Sizes<N> sizes;  // logarithms
  double rate = 0;
};

// Shepard's interpolation (inverse distances) of the logarithms, of a size moved into what the points cover. A high
// power, so that the nearest points decide. What is smaller than the points takes as long as at their edge: its flops,
// which grow with each size to the power of its `order`, are fewer, and its rate is lower by as much.
template <size_t N>
double interpolated(const std::vector<Point<N>>& points, Sizes<N> at, const Sizes<N>& order) {
  double short_by = 0;
  for (size_t d = 0; d < N; ++d) {
    const auto by_size = [d](const Point<N>& point) { return point.sizes[d]; };
    const auto [low, high] = std::ranges::minmax(points, {}, by_size);
    short_by += std::max(0.0, by_size(low) - at[d]) * order[d];
    at[d] = std::clamp(at[d], by_size(low), by_size(high));
  }
  const double small = std::exp2(-short_by);
  double sum = 0, weights = 0;
  for (const Point<N>& point : points) {
    double square = 0;
    for (size_t d = 0; d < N; ++d) square += (point.sizes[d] - at[d]) * (point.sizes[d] - at[d]);
    if (square == 0) return point.rate * small;
    const double weight = 1 / (square * square);
    weights += weight;
    sum += weight * std::log(point.rate);
  }
  return std::exp(sum / weights) * small;
}

double size_of(double size) { return std::log2(std::max(size, 1.0)); }

}  // namespace

std::string_view name_of(KernelOwner owner) { return owner == KernelOwner::kBlocked ? "blocked" : "library"; }

std::vector<StreamRate> default_streams() {
  return {{1 << 17, 1.2e11}, {1 << 21, 6e10}, {1 << 24, 3e10}, {1 << 27, 2e10}};
}

std::vector<MatmulRate> default_matmuls() {
  std::vector<MatmulRate> rates;
  for (const KernelOwner owner : {KernelOwner::kLibrary, KernelOwner::kBlocked}) {
    rates.push_back({owner, DType::kF32, 32, 32, 32, 2e10});
    rates.push_back({owner, DType::kF32, 512, 512, 512, 1.2e11});
    rates.push_back({owner, DType::kBF16, 32, 32, 32, 2e10});
    rates.push_back({owner, DType::kBF16, 512, 512, 512, 3e11});
  }
  return rates;
}

std::vector<AttentionRate> default_attentions() {
  std::vector<AttentionRate> rates;
  for (const KernelOwner owner : {KernelOwner::kLibrary, KernelOwner::kBlocked})
    for (const bool backward : {false, true}) {
      rates.push_back({owner, DType::kF32, backward, 256, 64, 6e10});
      rates.push_back({owner, DType::kBF16, backward, 256, 64, 1.2e11});
    }
  return rates;
}

std::vector<ConvolutionRate> default_convolutions() {
  std::vector<ConvolutionRate> rates;
  for (const bool backward : {false, true}) {
    rates.push_back({DType::kF32, backward, false, 2048, 64, 576, 6e10});
    rates.push_back({DType::kF32, backward, true, 2048, 64, 9, 1e10});
  }
  return rates;
}

double stream_rate(const Rates& rates, double bytes) {
  INTERNAL_CHECK(!rates.streams.empty(), "a target without rates of streams");
  const auto above = std::ranges::find_if(rates.streams, [&](const StreamRate& rate) { return rate.bytes >= bytes; });
  if (above == rates.streams.begin()) return above->bytes_per_second;
  if (above == rates.streams.end()) return rates.streams.back().bytes_per_second;
  const StreamRate& below = *(above - 1);
  const double share = std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return std::exp(std::log(below.bytes_per_second) * (1 - share) + std::log(above->bytes_per_second) * share);
}

double matmul_rate(const Rates& rates, KernelOwner owner, DType dtype, int64_t rows, int64_t columns, int64_t inner) {
  std::vector<Point<3>> points;
  for (const MatmulRate& rate : rates.matmuls)
    if (rate.owner == owner && rate.dtype == dtype)
      points.push_back({{size_of(static_cast<double>(rate.rows)), size_of(static_cast<double>(rate.columns)),
                         size_of(static_cast<double>(rate.inner))},
                        rate.flops_per_second});
  if (points.empty() && dtype != DType::kF32) return matmul_rate(rates, owner, DType::kF32, rows, columns, inner);
  INTERNAL_CHECK(!points.empty(), "a target without rates of {} matmuls", name_of(owner));
  return interpolated<3>(
      points,
      {size_of(static_cast<double>(rows)), size_of(static_cast<double>(columns)), size_of(static_cast<double>(inner))},
      {1, 1, 1});
}

double attention_rate(const Rates& rates, KernelOwner owner, DType dtype, bool backward, int64_t length,
                      int64_t width) {
  std::vector<Point<2>> points;
  for (const AttentionRate& rate : rates.attentions)
    if (rate.owner == owner && rate.dtype == dtype && rate.backward == backward)
      points.push_back({{size_of(static_cast<double>(rate.length)), size_of(static_cast<double>(rate.width))},
                        rate.flops_per_second});
  if (points.empty() && dtype != DType::kF32) return attention_rate(rates, owner, DType::kF32, backward, length, width);
  INTERNAL_CHECK(!points.empty(), "a target without rates of {} attention", name_of(owner));
  // What a blocked kernel fills up is among its flops already.
  const Sizes<2> order = owner == KernelOwner::kBlocked ? Sizes<2>{0, 0} : Sizes<2>{2, 1};
  return interpolated<2>(points, {size_of(static_cast<double>(length)), size_of(static_cast<double>(width))}, order);
}

double convolution_rate(const Rates& rates, DType dtype, bool backward, bool depthwise, int64_t pixels,
                        int64_t channels, int64_t inner) {
  std::vector<Point<3>> points;
  for (const ConvolutionRate& rate : rates.convolutions)
    if (rate.dtype == dtype && rate.backward == backward && rate.depthwise == depthwise)
      points.push_back({{size_of(static_cast<double>(rate.pixels)), size_of(static_cast<double>(rate.channels)),
                         size_of(static_cast<double>(rate.inner))},
                        rate.flops_per_second});
  if (points.empty() && dtype != DType::kF32)
    return convolution_rate(rates, DType::kF32, backward, depthwise, pixels, channels, inner);
  INTERNAL_CHECK(!points.empty(), "a target without rates of convolutions");
  return interpolated<3>(points,
                         {size_of(static_cast<double>(pixels)), size_of(static_cast<double>(channels)),
                          size_of(static_cast<double>(inner))},
                         {1, 1, 1});
}

}  // namespace stepc
