// Byte-pair encoding of one word: from its first symbols on, always the merge of lowest rank, leftmost first, until
// none applies.
//
//   merges: 0 "l o" -> "lo", 1 "lo w" -> "low"        "slow": s l o w -> s lo w -> s low
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenize/model/flat_map.h"
#include "data/tokenize/model/model_file.h"

namespace stepc {

class Bpe {
 public:
  // The merges of a file; a UserError if one needs a token that the vocabulary lacks, or is there twice.
  Bpe(const BpeFile& file, std::string_view what);

  [[nodiscard]] bool has_merges() const { return merges_.size() > 0; }

  // Replaces the symbols from `begin` on by their tokens; O(n log n).
  void merge(std::vector<int32_t>& symbols, size_t begin) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  [[nodiscard]] const Merge* find(int32_t left, int32_t right) const;
  bool add_merge(int32_t left, int32_t right, int32_t merged);
  size_t merge_few(int32_t* symbols, size_t count) const;
  void merge_many(std::vector<int32_t>& symbols, size_t begin) const;

  FlatMap<Merge> merges_;  // by (left, right)
};

}  // namespace stepc
