#include "data/shard/token_stream.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/hash.h"

namespace stepc {

TokenStream::TokenStream(const std::vector<std::filesystem::path>& shards) {
  std::vector<uint64_t> hashes;
  begins_.push_back(0);
  for (const auto& path : shards) {
    const ShardHeader& header = shards_.emplace_back(path).header();
    begins_.push_back(begins_.back() + header.token_count);
    documents_ += header.document_count;
    text_bytes_ += header.text_bytes;
    vocab_size_ = std::max(vocab_size_, header.vocab_size);
    hashes.push_back(header.payload_hash);
  }
  hash_ = hash_bytes(std::as_bytes(std::span(hashes)));
}

size_t TokenStream::shard_of(uint64_t token) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), token) - begins_.begin()) - 1;
}

std::vector<uint64_t> TokenStream::document_ends() const {
  std::vector<uint64_t> ends;
  ends.reserve(documents_);
  for (size_t shard = 0; shard < shards_.size(); ++shard)
    for (const uint64_t end : shards_[shard].ends()) ends.push_back(begins_[shard] + end);
  return ends;
}

void TokenStream::copy(uint64_t begin, std::span<int64_t> out) const {
  INTERNAL_CHECK(begin <= size() && out.size() <= size() - begin, "{} + {} of {}", begin, out.size(), size());
  for (size_t shard = out.empty() ? 0 : shard_of(begin); !out.empty(); ++shard) {
    const uint64_t at = begin - begins_[shard];
    const size_t count = std::min<uint64_t>(out.size(), shards_[shard].size() - at);
    shards_[shard].copy(at, out.first(count));
    out = out.subspan(count);
    begin += count;
  }
}

void TokenStream::fill(uint64_t begin, const PackedRow& row) const {
  const size_t seq = row.tokens.size();
  INTERNAL_CHECK(begin < size() && seq < size() - begin, "{} + {} + 1 of {}", begin, seq, size());
  copy(begin, row.tokens);
  std::copy(row.tokens.begin() + 1, row.tokens.end(), row.labels.begin());
  copy(begin + seq, row.labels.last(1));
  fill_documents(begin, row);
  hide_unlearned(begin + 1, row.labels);
}

void TokenStream::fill_documents(uint64_t begin, const PackedRow& row) const {
  const uint64_t end = begin + row.tokens.size();
  int64_t document = 0;
  uint64_t at = begin;
  for (size_t shard = shard_of(begin); at < end; ++shard) {
    const auto ends = shards_[shard].ends();
    auto next = std::upper_bound(ends.begin(), ends.end(), at - begins_[shard]);
    for (; next != ends.end() && at < end; ++next) {
      const uint64_t document_end = begins_[shard] + *next;
      if (document_end == at) continue;  // an empty document
      const uint64_t stop = std::min(end, document_end);
      const auto first = static_cast<ptrdiff_t>(at - begin);
      const auto last = static_cast<ptrdiff_t>(stop - begin);
      std::iota(row.positions.begin() + first, row.positions.begin() + last, 0);
      std::fill(row.documents.begin() + first, row.documents.begin() + last, document);
      if (document_end <= end) row.labels[static_cast<size_t>(last) - 1] = PackedRow::kNoLabel;
      ++document;
      at = stop;
    }
  }
}

void TokenStream::hide_unlearned(uint64_t begin, std::span<int64_t> labels) const {
  for (size_t shard = shard_of(begin); !labels.empty(); ++shard) {
    const uint64_t at = begin - begins_[shard];
    const size_t count = std::min<uint64_t>(labels.size(), shards_[shard].size() - at);
    if (shards_[shard].has_learned())
      for (size_t i = 0; i < count; ++i)
        if (!shards_[shard].learned(at + i)) labels[i] = PackedRow::kNoLabel;
    labels = labels.subspan(count);
    begin += count;
  }
}

void TokenStream::verify() const {
  for (const TokenShard& shard : shards_) shard.verify();
}

}  // namespace stepc
