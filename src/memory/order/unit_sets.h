// Sets of units as rows of bits: for each unit those that must run before it, or after it. Internal to memory/order.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace stepc::memory {

class UnitSets {
 public:
  explicit UnitSets(size_t units) : words_((units + 63) / 64), bits_(units * words_, 0) {}

  [[nodiscard]] size_t words() const { return words_; }
  [[nodiscard]] const uint64_t* row(size_t unit) const { return &bits_[unit * words_]; }
  void add(size_t row, size_t unit) { bits_[row * words_ + unit / 64] |= uint64_t{1} << (unit % 64); }
  void add_row(size_t row, size_t other) {
    for (size_t w = 0; w < words_; ++w) bits_[row * words_ + w] |= bits_[other * words_ + w];
  }
  [[nodiscard]] bool has(size_t row, size_t unit) const {
    return (bits_[row * words_ + unit / 64] >> (unit % 64) & 1) != 0;
  }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

// Calls visit(unit) for every bit of a word, the first bit being unit `first`.
template <class Visit>
void for_each_bit(uint64_t word, size_t first, Visit&& visit) {
  for (; word != 0; word &= word - 1) visit(first + static_cast<size_t>(std::countr_zero(word)));
}

}  // namespace stepc::memory
