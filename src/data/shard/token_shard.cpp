#include "data/shard/token_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "data/tokenize/model/model_file.h"

namespace stepc {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

namespace {
uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

uint64_t header_hash(const ShardHeader& header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return hash_bytes(bytes.first(offsetof(ShardHeader, header_hash)));
}

struct Layout {
  uint64_t tokens, ends, learned, file;  // where the parts begin, and the size of all
};

Layout layout_of(const ShardHeader& header) {
  Layout layout = {};
  layout.tokens = sizeof(ShardHeader);
  layout.ends = layout.tokens + padded(header.token_count * header.token_bytes);
  layout.learned = layout.ends + header.document_count * sizeof(uint64_t);
  layout.file = layout.learned + (header.has_learned != 0 ? padded((header.token_count + 7) / 8) : 0);
  return layout;
}

// What the system reads ahead of whoever reads these bytes of a map. Only advice: a failure changes nothing.
void advise(std::span<const std::byte> bytes, int advice) {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t into_page = reinterpret_cast<uintptr_t>(bytes.data()) % kPage;
  ::madvise(const_cast<std::byte*>(bytes.data()) - into_page, bytes.size() + into_page, advice);
}
}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, int32_t vocab_size) : file_(path) {
  header_.token_bytes = vocab_size <= 1 << 16 ? 2 : 4;
  header_.vocab_size = static_cast<uint64_t>(vocab_size);
  file_.write(std::as_bytes(std::span(&header_, 1)));  // its place, until all is known
}

void ShardWriter::write(std::span<const std::byte> bytes) {
  constexpr size_t kBufferBytes = 1 << 20;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  written_ += bytes.size();
  if (buffer_.size() >= kBufferBytes) flush();
}

void ShardWriter::flush() {
  hash_.add(buffer_);
  file_.write(buffer_);
  buffer_.clear();
}

void ShardWriter::pad() {
  constexpr std::array<std::byte, 8> kZeros = {};
  write(std::span(kZeros).first(padded(written_) - written_));
}

void ShardWriter::put(std::span<const int32_t> tokens) {
  if (header_.token_bytes == 2) {
    const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
    write(std::as_bytes(std::span(narrow)));
  } else {
    write(std::as_bytes(tokens));
  }
  header_.token_count += tokens.size();
}

void ShardWriter::end_document(const std::vector<bool>& learned) {
  const uint64_t begin = ends_.empty() ? 0 : ends_.back();
  INTERNAL_CHECK(learned.empty() || learned.size() == tokens() - begin, "{} of {}", learned.size(), tokens() - begin);
  ends_.push_back(tokens());
  if (!learned.empty()) {
    learned_.resize(begin, true);  // of documents before that had no mask
    learned_.insert(learned_.end(), learned.begin(), learned.end());
  } else if (!learned_.empty()) {
    learned_.resize(tokens(), true);
  }
}

void ShardWriter::commit() {
  INTERNAL_CHECK_EQ(tokens(), ends_.empty() ? 0 : ends_.back());
  pad();
  header_.document_count = ends_.size();
  write(std::as_bytes(std::span(ends_)));
  if (!learned_.empty()) {
    header_.has_learned = 1;
    std::vector<uint8_t> bits((learned_.size() + 7) / 8);
    for (size_t i = 0; i < learned_.size(); ++i)
      if (learned_[i]) bits[i / 8] |= static_cast<uint8_t>(1U << (i % 8));
    write(std::as_bytes(std::span(bits)));
    pad();
  }
  INTERNAL_CHECK_EQ(written_ + sizeof header_, layout_of(header_).file);
  flush();
  header_.payload_hash = hash_.value();
  header_.header_hash = header_hash(header_);
  file_.write_at_beginning(std::as_bytes(std::span(&header_, 1)));
  file_.commit();
}

void write_shard(const std::filesystem::path& path, const TokenizedDocuments& documents, int32_t vocab_size) {
  INTERNAL_CHECK(documents.ends.empty() ? documents.tokens.empty() : documents.ends.back() == documents.tokens.size());
  INTERNAL_CHECK(documents.learned.empty() || documents.learned.size() == documents.tokens.size());
  ShardWriter writer(path, vocab_size);
  uint64_t begin = 0;
  for (const uint64_t end : documents.ends) {
    writer.put(std::span(documents.tokens).subspan(begin, end - begin));
    const auto learned = documents.learned.begin();
    writer.end_document(documents.learned.empty() ? std::vector<bool>()
                                                  : std::vector<bool>(learned + static_cast<ptrdiff_t>(begin),
                                                                      learned + static_cast<ptrdiff_t>(end)));
    begin = end;
  }
  writer.add_text_bytes(documents.text_bytes);
  writer.commit();
}

TokenShard::TokenShard(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const std::string name = path.string();
  advise(bytes, MADV_RANDOM);  // the two parts that are read here, not what is around them
  USER_CHECK(bytes.size() >= sizeof header_, "{}: no token shard: {} bytes, a header has {}", name, bytes.size(),
             sizeof header_);
  std::memcpy(&header_, bytes.data(), sizeof header_);
  USER_CHECK(header_.magic == ShardHeader::kMagic, "{}: no token shard: it begins with {}", name,
             hash_text(header_.magic));
  USER_CHECK(header_.header_hash == header_hash(header_), "{}: damaged token shard: the header's hash is wrong", name);
  // Bounded so that no product overflows.
  const uint64_t most = bytes.size();
  const bool sane = (header_.token_bytes == 2 || header_.token_bytes == 4) && header_.has_learned <= 1 &&
                    header_.token_count <= most && header_.document_count <= most && header_.vocab_size >= 1 &&
                    header_.vocab_size <= uint64_t{kMaxTokenId} + 1;
  USER_CHECK(sane && layout_of(header_).file == most,
             "{}: damaged token shard: {} bytes do not hold {} tokens of {} documents", name, most, header_.token_count,
             header_.document_count);
  const Layout layout = layout_of(header_);
  tokens_ = bytes.subspan(layout.tokens, header_.token_count * header_.token_bytes);
  // The map begins at a page, the part at a multiple of eight.
  ends_ = {reinterpret_cast<const uint64_t*>(bytes.data() + layout.ends), header_.document_count};
  if (header_.has_learned != 0) learned_ = bytes.subspan(layout.learned);
  advise(std::as_bytes(ends_), MADV_WILLNEED);
  uint64_t last = 0;
  for (const uint64_t end : ends_) {
    USER_CHECK(end >= last && end <= header_.token_count, "{}: damaged token shard: a document ends at {} after {}",
               name, end, last);
    last = end;
  }
  USER_CHECK(last == header_.token_count, "{}: damaged token shard: the last document ends at {} of {} tokens", name,
             last, header_.token_count);
  advise(bytes, MADV_NORMAL);
}

void TokenShard::verify() const {
  // Block by block, so that a large shard does not take its size in memory.
  constexpr uint64_t kBlock = uint64_t{16} << 20;
  RunningHash hash;
  const uint64_t size = file_.bytes().size();
  for (uint64_t begin = sizeof header_; begin < size; begin += kBlock) {
    const uint64_t end = std::min(begin + kBlock, size);
    hash.add(file_.bytes().subspan(begin, end - begin));
    file_.let_go(begin, end);
  }
  USER_CHECK(hash.value() == header_.payload_hash,
             "{}: damaged token shard: the content's hash is wrong; remove the file and run again", path_.string());
}

template <class Token>
void TokenShard::copy_from(uint64_t begin, std::span<int64_t> out) const {
  const auto* tokens = reinterpret_cast<const Token*>(tokens_.data()) + begin;
  Token largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    largest = std::max(largest, tokens[i]);
    out[i] = tokens[i];
  }
  USER_CHECK(largest < header_.vocab_size, "{}: damaged token shard: token {} in a vocabulary of {}", path_.string(),
             largest, header_.vocab_size);
}

void TokenShard::copy(uint64_t begin, std::span<int64_t> out) const {
  INTERNAL_CHECK(begin <= size() && out.size() <= size() - begin, "{} + {} of {}", begin, out.size(), size());
  if (header_.token_bytes == 2) {
    copy_from<uint16_t>(begin, out);
  } else {
    copy_from<uint32_t>(begin, out);
  }
}

}  // namespace stepc
