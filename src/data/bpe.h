// Byte-pair encoding of one word: its bytes as tokens, then always the merge of lowest rank, leftmost first, until none
// applies.
//
//   merges: 0 "l o" -> "lo", 1 "lo w" -> "low"        "slow": s l o w -> s lo w -> s low
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stepc {

class Bpe {
 public:
  explicit Bpe(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

  // Merges are added in order of rank. False if the pair has one already.
  bool add_merge(int32_t left, int32_t right, int32_t merged);
  [[nodiscard]] bool has_merges() const { return !merges_.empty(); }
  [[nodiscard]] int32_t byte_id(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }

  // Appends the word's tokens; O(n log n).
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  [[nodiscard]] const Merge* find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;  // by (left, right)
};

}  // namespace stepc
