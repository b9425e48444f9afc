#include "data/shard/tokenize_documents.h"

#include <algorithm>

namespace stepc {

void DocumentTokenizer::append(const Document& document, TokenizedDocuments& out) {
  const size_t begin = out.tokens.size();
  if (!document.is_chat) out.tokens.insert(out.tokens.end(), prefix_.begin(), prefix_.end());
  encoder_.encode(document.text, out.tokens);
  if (!document.is_chat) {
    out.tokens.insert(out.tokens.end(), suffix_.begin(), suffix_.end());
    if (separator_ && (suffix_.empty() || suffix_.back() != *separator_)) out.tokens.push_back(*separator_);
  }
  out.text_bytes += document.text.size();
  if (out.tokens.size() == begin) return;
  out.ends.push_back(out.tokens.size());
  if (document.is_chat) {
    out.learned.resize(begin, true);  // of documents before that had no mask
    append_learned(document, begin, out);
  } else if (!out.learned.empty()) {
    out.learned.resize(out.tokens.size(), true);
  }
}

// A byte range's tokens, whatever the tokenizer does at its borders: those that the text up to its end has in common
// with the whole, without those that the text up to its beginning has.
void DocumentTokenizer::append_learned(const Document& document, size_t begin, TokenizedDocuments& out) {
  out.learned.resize(out.tokens.size(), false);
  const auto tokens_before = [&](size_t byte) {
    if (byte == document.text.size()) return out.tokens.size() - begin;
    part_.clear();
    encoder_.encode(document.text.substr(0, byte), part_);
    const auto whole = out.tokens.begin() + static_cast<ptrdiff_t>(begin);
    const auto same = std::mismatch(part_.begin(), part_.end(), whole, out.tokens.end()).first;
    return static_cast<size_t>(same - part_.begin());
  };
  for (const auto& [from, to] : document.learned) {
    const size_t first = begin + tokens_before(from);
    const size_t last = begin + tokens_before(to);
    for (size_t i = first; i < last; ++i) out.learned[i] = true;
  }
}

}  // namespace stepc
