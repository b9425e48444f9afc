// What tokenizer.json says of its model, as plain data: types are checked, whether the parts fit together is not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stepc {

inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

struct BpeFile {
  std::map<std::string, int32_t, std::less<>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
  std::optional<std::string> unk_token;
  bool byte_level = true;      // words are spelled in the byte alphabet; else in characters, and then:
  bool byte_fallback = false;  // a character without a token becomes the tokens <0xE2> of its bytes
  bool fuse_unk = false;       // unknown characters side by side become one token
  bool ignore_merges = false;  // a word that is a token needs no merges
};

struct UnigramFile {
  std::vector<std::pair<std::string, double>> pieces;  // with the logarithm of their probability; the index is the id
  int32_t unk_id = 0;
  bool byte_fallback = false;
};

}  // namespace stepc
