#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/check.h"

namespace stepc {

namespace {

constexpr int64_t kBlock = 512;      // elements summed at a time: an accumulator that stays in L1
constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread

template <class T>
struct SumType {
  using type = T;
};
template <>
struct SumType<c10::BFloat16> {
  using type = float;
};
template <>
struct SumType<c10::Half> {
  using type = float;
};

template <class T>
T best(T a, T b, ReduceOp how) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b)) return a + b;
  return how == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
}

template <class T>
void reduce_block(std::span<const void* const> parts, T* out, int64_t begin, int64_t count, ReduceOp how) {
  using Sum = typename SumType<T>::type;
  std::array<Sum, kBlock> sum;
  const auto part = [&](size_t k) { return static_cast<const T*>(parts[k]) + begin; };
  const T* first = part(0);
  for (int64_t i = 0; i < count; ++i) sum[static_cast<size_t>(i)] = static_cast<Sum>(first[i]);
  for (size_t k = 1; k < parts.size(); ++k) {
    const T* next = part(k);
    if (how == ReduceOp::kSum && !std::is_same_v<T, bool>) {
      for (int64_t i = 0; i < count; ++i) {
        Sum& to = sum[static_cast<size_t>(i)];
        to = static_cast<Sum>(to + static_cast<Sum>(next[i]));
      }
    } else {  // a sum of bools is their largest
      const ReduceOp as = how == ReduceOp::kMin ? ReduceOp::kMin : ReduceOp::kMax;
      for (int64_t i = 0; i < count; ++i) {
        Sum& to = sum[static_cast<size_t>(i)];
        to = best(to, static_cast<Sum>(next[i]), as);
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) out[begin + i] = static_cast<T>(sum[static_cast<size_t>(i)]);
}

template <class T>
void reduce_as(std::span<const void* const> parts, void* out, int64_t count, ReduceOp how) {
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock)
      reduce_block(parts, static_cast<T*>(out), at, std::min(kBlock, end - at), how);
  });
}

}  // namespace

void reduce_parts(std::span<const void* const> parts, void* out, int64_t count, c10::ScalarType type, ReduceOp how) {
  INTERNAL_CHECK(!parts.empty(), "nothing to reduce");
  switch (type) {
    case c10::ScalarType::Float:
      return reduce_as<float>(parts, out, count, how);
    case c10::ScalarType::Double:
      return reduce_as<double>(parts, out, count, how);
    case c10::ScalarType::BFloat16:
      return reduce_as<c10::BFloat16>(parts, out, count, how);
    case c10::ScalarType::Half:
      return reduce_as<c10::Half>(parts, out, count, how);
    case c10::ScalarType::Long:
      return reduce_as<int64_t>(parts, out, count, how);
    case c10::ScalarType::Int:
      return reduce_as<int32_t>(parts, out, count, how);
    case c10::ScalarType::Short:
      return reduce_as<int16_t>(parts, out, count, how);
    case c10::ScalarType::Char:
      return reduce_as<int8_t>(parts, out, count, how);
    case c10::ScalarType::Byte:
      return reduce_as<uint8_t>(parts, out, count, how);
    case c10::ScalarType::Bool:
      return reduce_as<bool>(parts, out, count, how);
    default:
      INTERNAL_CHECK(false, "{} of tensors of {}", name_of(how), c10::toString(type));
  }
}

}  // namespace stepc
