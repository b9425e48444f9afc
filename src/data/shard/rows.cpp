#include "data/shard/rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace stepc {

Rows Rows::windows(std::shared_ptr<const TokenStream> stream, uint64_t begin, uint64_t tokens, uint64_t length) {
  Rows rows(std::move(stream));
  rows.begin_ = begin;
  rows.length_ = length;
  rows.windows_ = tokens == 0 ? 0 : (tokens - 1) / length;
  return rows;
}

Rows Rows::documents(std::shared_ptr<const TokenStream> stream, uint64_t begin, uint64_t tokens) {
  Rows rows(std::move(stream));
  uint64_t first = 0;
  for (const uint64_t end : rows.stream_->document_ends()) {
    const bool is_inside = first >= begin && end <= begin + tokens;
    if (is_inside && end >= first + 2) rows.documents_.push_back({first, end - first - 1});
    first = end;
  }
  return rows;
}

uint64_t Rows::longest() const {
  if (length_ != 0 || documents_.empty()) return length_;
  return std::ranges::max_element(documents_, {}, &Document::length)->length;
}

double Rows::mean_length() const {
  if (length_ != 0 || documents_.empty()) return static_cast<double>(length_);
  const uint64_t sum = std::accumulate(documents_.begin(), documents_.end(), uint64_t{0},
                                       [](uint64_t so_far, const Document& one) { return so_far + one.length; });
  return static_cast<double>(sum) / static_cast<double>(documents_.size());
}

bool Rows::has_labels() const {
  std::vector<int64_t> tokens, labels, positions, documents;
  for (uint64_t i = 0; i < count(); ++i) {
    for (auto* values : {&tokens, &labels, &positions, &documents}) values->resize(length(i));
    fill(i, {tokens, labels, positions, documents});
    if (std::ranges::any_of(labels, [](int64_t label) { return label != PackedRow::kNoLabel; })) return true;
  }
  return false;
}

void Rows::fill(uint64_t index, const PackedRow& row) const {
  INTERNAL_CHECK_LT(index, count());
  const uint64_t begin = length_ == 0 ? documents_[index].begin : begin_ + index * length_;
  const size_t filled = std::min<uint64_t>(length(index), row.tokens.size());
  stream_->fill(begin, {row.tokens.first(filled), row.labels.first(filled), row.positions.first(filled),
                        row.documents.first(filled)});
  std::ranges::fill(row.tokens.subspan(filled), 0);
  std::ranges::fill(row.labels.subspan(filled), PackedRow::kNoLabel);
  const auto padding = row.positions.subspan(filled);
  std::iota(padding.begin(), padding.end(), 0);
  std::ranges::fill(row.documents.subspan(filled), row.documents[filled - 1] + 1);
}

}  // namespace stepc
