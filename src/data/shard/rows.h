// The rows that a part of a stream is cut into: windows of one length, or a document each.
//
//   tokens     a a a b b c c c c c c
//   windows    [a a a b] [b c c c] ...       of 4: the token behind the last is that one's label
//   documents  [a a] [b] [c c c c c]         the last token of a document is a label alone
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/shard/token_stream.h"

namespace stepc {

class Rows {
 public:
  // All windows of `length` tokens that lie in the `tokens` tokens from `begin`.
  static Rows windows(std::shared_ptr<const TokenStream> stream, uint64_t begin, uint64_t tokens, uint64_t length);
  // All documents of at least two tokens that do.
  static Rows documents(std::shared_ptr<const TokenStream> stream, uint64_t begin, uint64_t tokens);

  [[nodiscard]] uint64_t count() const { return length_ == 0 ? documents_.size() : windows_; }
  [[nodiscard]] uint64_t length(uint64_t row) const { return length_ == 0 ? documents_.at(row).length : length_; }
  [[nodiscard]] uint64_t longest() const;
  [[nodiscard]] double mean_length() const;
  // Whether any has a label that training learns. Reads until one has.
  [[nodiscard]] bool has_labels() const;
  // A longer row is cut to what is given. Behind the end of a shorter one stands padding: token 0 without a label,
  // which no token before it sees.
  void fill(uint64_t index, const PackedRow& row) const;

 private:
  struct Document {
    uint64_t begin, length;
  };

  explicit Rows(std::shared_ptr<const TokenStream> stream) : stream_(std::move(stream)) {}

  std::shared_ptr<const TokenStream> stream_;
  uint64_t begin_ = 0, windows_ = 0, length_ = 0;  // of windows; length 0: rows are documents
  std::vector<Document> documents_;
};

}  // namespace stepc
