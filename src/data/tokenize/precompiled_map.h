// SentencePiece's precompiled character map, as the "Precompiled" normalizer of tokenizer.json carries it: a
// double-array trie from short strings to what replaces them. Applied as the `tokenizers` package does: to each
// grapheme cluster of fewer than six bytes, else to each character; the shortest entry that is a prefix counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

class PrecompiledMap {
 public:
  // The decoded bytes: little-endian size of the trie in bytes, the trie, the replacements with a zero after each.
  PrecompiledMap(std::string_view bytes, std::string_view what);

  [[nodiscard]] std::string apply(std::string_view text) const;

 private:
  [[nodiscard]] std::optional<std::string_view> replacement(std::string_view key) const;
  void append_cluster(std::string_view cluster, std::string& result) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

// nullopt if the text is not base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace stepc
