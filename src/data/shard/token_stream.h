// The tokens of several shards, one after another, with their documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "data/shard/token_shard.h"

namespace stepc {

// One row of a batch, (seq) each. Position i sees the token before it in the same document only: `positions` count from
// the document's beginning in this row, `documents` number the documents of the row from 0. A label is the next token,
// or kNoLabel where that is another document's or is not learned.
struct PackedRow {
  static constexpr int64_t kNoLabel = -100;
  std::span<int64_t> tokens, labels, positions, documents;
};

class TokenStream {
 public:
  explicit TokenStream(const std::vector<std::filesystem::path>& shards);

  [[nodiscard]] uint64_t size() const { return begins_.back(); }
  [[nodiscard]] uint64_t documents() const { return documents_; }
  [[nodiscard]] uint64_t text_bytes() const { return text_bytes_; }
  [[nodiscard]] uint64_t vocab_size() const { return vocab_size_; }
  // Of the content, by the shards' own hashes.
  [[nodiscard]] uint64_t hash() const { return hash_; }

  // The row of tokens begin .. begin + seq; it needs token begin + seq too, as the last label.
  void fill(uint64_t begin, const PackedRow& row) const;
  // Where each document ends, in order; an empty one ends where it begins.
  [[nodiscard]] std::vector<uint64_t> document_ends() const;
  // Tokens begin .. begin + out.size() - 1.
  void copy(uint64_t begin, std::span<int64_t> out) const;
  void verify() const;

 private:
  [[nodiscard]] size_t shard_of(uint64_t token) const;
  void fill_documents(uint64_t begin, const PackedRow& row) const;
  void hide_unlearned(uint64_t begin, std::span<int64_t> labels) const;

  std::vector<TokenShard> shards_;
  std::vector<uint64_t> begins_;  // of each shard, and the end of the last
  uint64_t documents_ = 0, text_bytes_ = 0, vocab_size_ = 0, hash_ = 0;
};

}  // namespace stepc
