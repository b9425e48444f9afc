#include "data/sample_order.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace stepc {

namespace {
constexpr int kRounds = 6;

// The finalizer of SplitMix64.
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
  value = (value ^ value >> 27) * 0x94D049BB133111EB;
  return value ^ value >> 31;
}
}  // namespace

Permutation::Permutation(uint64_t count, uint64_t key) : count_(count), key_(key) {
  INTERNAL_CHECK(count > 0 && count <= uint64_t{1} << 62, "{}", count);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (mix(key_ ^ mix(round << 32 | right)) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  INTERNAL_CHECK_LT(index, count_);
  // The network permutes at most four times as many values; the walk follows one of its cycles and returns to [0,
  // count) at the latest where it began.
  do {
    index = encrypt(index);
  } while (index >= count_);
  return index;
}

uint64_t window_of_sample(uint64_t seed, uint64_t count, uint64_t index) {
  return Permutation(count, mix(seed) ^ mix(~(index / count)))(index % count);
}

}  // namespace stepc
