// Text to tokens and back: tokenizer.json (BPE over bytes or characters, Unigram) with the ids that the `tokenizers`
// package gives, and tokenizer.model through the sentencepiece library. Text is bytes; byte-level tokenizers encode
// what is not UTF-8 all the same, and it comes back unchanged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_json.h"

namespace stepc {

// Immutable; copies share what they hold and may be used from several threads.
class Tokenizer {
 public:
  // Called now and then with the number of bytes encoded so far.
  using Progress = std::function<void(uint64_t bytes)>;
  // Takes the next tokens of a text.
  using Sink = std::function<void(std::span<const int32_t> ids)>;
  class Encoder;

  // `what` names the file in errors.
  Tokenizer(const TokenizerFile& file, std::string_view what);
  // A tokenizer.json, or with the ending .model a SentencePiece model.
  static Tokenizer load(const std::filesystem::path& path);

  // Added tokens are found in the text first, the longest at each place, then what lies between is normalized, cut
  // into words and encoded. Nothing is put around the text: that is prefix() and suffix().
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, const Progress& progress = {}) const;
  // The tokens' bytes, added tokens spelled out. An id without a token (a padded vocabulary) gives nothing.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids, InvalidBytes invalid = InvalidBytes::kKept) const;

  // The largest id plus one: what an embedding needs.
  [[nodiscard]] int32_t vocab_size() const;
  // The id of an added token such as "<|endoftext|>".
  [[nodiscard]] std::optional<int32_t> added_token(std::string_view content) const;
  // The token's own spelling; nothing for an id without a token.
  [[nodiscard]] std::string_view spelling(int32_t id) const;
  // What the file's post-processor puts before and after a text, such as <s>.
  [[nodiscard]] const std::vector<int32_t>& prefix() const;
  [[nodiscard]] const std::vector<int32_t>& suffix() const;
  // Of everything that decides about ids: equal hashes give equal tokens.
  [[nodiscard]] uint64_t hash() const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const Parts> parts_;
};

// Encodes many texts one after another and remembers their words. One per thread.
class Tokenizer::Encoder {
 public:
  // `expected_bytes` of text in all; it sets the size of the memory for words.
  explicit Encoder(const Tokenizer& tokenizer, uint64_t expected_bytes = UINT64_MAX);
  ~Encoder();
  Encoder(Encoder&&) noexcept;

  static constexpr size_t kPartBytes = size_t{1} << 20;

  // Appends the tokens of the text.
  void encode(std::string_view text, std::vector<int32_t>& ids, const Progress& progress = {});
  // The same tokens, part after part of a long text, in memory for one part: of about `part_bytes`, or to the next
  // place where the tokenizer allows a cut (data/tokenize/safe_cuts.h). `progress` is called after each part.
  void encode_parts(std::string_view text, const Sink& sink, const Progress& progress = {},
                    size_t part_bytes = kPartBytes);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace stepc
