// Byte-level BPE out of a Hugging Face tokenizer.json: the same ids as the `tokenizers` package gives. Text is bytes;
// what is not UTF-8 is encoded all the same and comes back unchanged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/tokenizer_json.h"
#include "data/word_split.h"

namespace stepc {

class Tokenizer {
 public:
  // Called now and then with the number of bytes encoded so far.
  using Progress = std::function<void(uint64_t bytes)>;

  // `what` names the file in errors.
  Tokenizer(const TokenizerFile& file, std::string_view what);
  static Tokenizer load(const std::filesystem::path& path);

  // Added tokens are found in the text first, the longest at each place, then what lies between is split and merged.
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, const Progress& progress = {}) const;
  // The tokens' bytes, added tokens spelled out. An id without a token (a padded vocabulary) gives nothing.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const;

  // The largest id plus one: what an embedding needs.
  [[nodiscard]] int32_t vocab_size() const { return static_cast<int32_t>(bytes_of_id_.size()); }
  // The id of an added token such as "<|endoftext|>".
  [[nodiscard]] std::optional<int32_t> added_token(std::string_view content) const;

 private:
  struct Added {
    std::string content;
    int32_t id;
  };
  // Added tokens by first byte, longest first.
  struct Matcher {
    std::array<std::vector<Added>, 256> by_byte;
    bool empty = true;
    [[nodiscard]] const Added* at(std::string_view text) const;
  };
  class Encoding;  // one call of encode()

  void add_merges(const TokenizerFile& file, std::string_view what);
  void add_tokens(const TokenizerFile& file, std::string_view what);

  std::vector<std::string> bytes_of_id_;
  Bpe bpe_;
  std::optional<WordSplit> words_;
  Matcher raw_, normalized_;  // the first is matched first, over the whole text
  std::vector<Added> added_;
};

}  // namespace stepc
