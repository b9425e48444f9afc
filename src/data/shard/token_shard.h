// A token shard: the tokens of many documents in one file, read through a memory map.
//
//   header       64 bytes, little-endian (ShardHeader)
//   tokens       token_count of 2 or 4 bytes each
//   ends         document_count of 8 bytes: where each document ends, counted in tokens; the last is token_count
//   learned      one bit a token, lowest bit first: whether the loss counts it; absent where it counts all
//
// Each part begins at a multiple of eight bytes. A reader trusts nothing: sizes, ends and every token id are checked
// before they are used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/files.h"
#include "base/hash.h"

namespace stepc {

struct ShardHeader {
  static constexpr uint64_t kMagic = 0x314B4F5443504554;  // "TEPCTOK1"
  uint64_t magic = kMagic;
  uint32_t token_bytes = 2;
  uint32_t has_learned = 0;
  uint64_t token_count = 0;
  uint64_t document_count = 0;
  uint64_t vocab_size = 0;  // ids are below
  uint64_t text_bytes = 0;  // that the tokens were made of
  uint64_t payload_hash = 0;
  uint64_t header_hash = 0;  // of the fields before
};
static_assert(sizeof(ShardHeader) == 64);

// What goes into a shard, in memory.
struct TokenizedDocuments {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> ends;
  std::vector<bool> learned;  // empty, or one for each token
  uint64_t text_bytes = 0;
};

// A shard that is written as its tokens come: what it holds in memory is ends and masks. Written beside, synced and
// renamed into place by commit(); without it nothing is left.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, int32_t vocab_size);

  // Tokens of the document that has begun.
  void put(std::span<const int32_t> tokens);
  // `learned`: one for each of its tokens; empty: all are.
  void end_document(const std::vector<bool>& learned = {});
  [[nodiscard]] uint64_t tokens() const { return header_.token_count; }
  void add_text_bytes(uint64_t bytes) { header_.text_bytes += bytes; }
  void commit();

 private:
  void write(std::span<const std::byte> bytes);
  void pad();
  void flush();

  ShardHeader header_;
  FileWriter file_;
  RunningHash hash_;
  std::vector<std::byte> buffer_;  // of short documents, together
  uint64_t written_ = 0;           // bytes behind the header
  std::vector<uint64_t> ends_;
  std::vector<bool> learned_;  // empty, or one for each token of the documents that have ended
};

// All at once.
void write_shard(const std::filesystem::path& path, const TokenizedDocuments& documents, int32_t vocab_size);

// Immutable; may be read from several threads.
class TokenShard {
 public:
  // Reads the header and the ends, not the tokens; damage is a UserError.
  explicit TokenShard(const std::filesystem::path& path);
  // Reads everything and compares the hash of the content.
  void verify() const;

  [[nodiscard]] const ShardHeader& header() const { return header_; }
  [[nodiscard]] uint64_t size() const { return header_.token_count; }
  [[nodiscard]] std::span<const uint64_t> ends() const { return ends_; }
  [[nodiscard]] bool has_learned() const { return !learned_.empty(); }
  [[nodiscard]] bool learned(uint64_t token) const {
    return learned_.empty() || (static_cast<uint8_t>(learned_[token / 8]) >> (token % 8) & 1) != 0;
  }

  // Copies tokens begin .. begin + out.size() - 1, widened. A token at or above the vocabulary's size is a UserError.
  void copy(uint64_t begin, std::span<int64_t> out) const;

 private:
  template <class Token>
  void copy_from(uint64_t begin, std::span<int64_t> out) const;

  std::filesystem::path path_;
  MappedFile file_;
  ShardHeader header_;
  std::span<const std::byte> tokens_, learned_;
  std::span<const uint64_t> ends_;
};

}  // namespace stepc
