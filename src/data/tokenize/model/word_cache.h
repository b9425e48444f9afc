// The tokens of short words that were seen before. Text repeats its words, so most are never merged twice. A table of
// fixed size in which a new word takes the place of an old one.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace stepc {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 16;  // of a word
  static constexpr size_t kMaxIds = 5;     // of its tokens

  explicit WordCache(size_t slots) : entries_(std::bit_ceil(slots)) {}

  struct Entry {
    std::array<uint64_t, 2> word = {};
    uint8_t bytes = 0;  // 0: free
    uint8_t count = 0;  // 0: its tokens are not known
    std::array<int32_t, kMaxIds> ids = {};
  };

  // The word's entry; count is 0 if it was not seen, or lost its place. Words of 1 to kMaxBytes bytes.
  // `readable`: bytes that may be read from the word's beginning, whatever they are.
  Entry& find(std::string_view word, size_t readable) {
    std::array<uint64_t, 2> key = {};
    if (readable >= kMaxBytes) {
      std::memcpy(key.data(), word.data(), kMaxBytes);
      const size_t bits = 8 * word.size();
      if (bits <= 64) {
        key[1] = 0;
        key[0] &= UINT64_MAX >> (64 - bits);
      } else {
        key[1] &= UINT64_MAX >> (128 - bits);
      }
    } else {
      std::memcpy(key.data(), word.data(), word.size());
    }
    const uint64_t mixed = (key[0] + word.size()) * 0x9E3779B97F4A7C15 ^ key[1] * 0xC2B2AE3D27D4EB4F;
    Entry& entry = entries_[(mixed ^ mixed >> 32) & (entries_.size() - 1)];
    if (entry.word != key || entry.bytes != word.size()) {
      entry.word = key;
      entry.bytes = static_cast<uint8_t>(word.size());
      entry.count = 0;
    }
    return entry;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace stepc
