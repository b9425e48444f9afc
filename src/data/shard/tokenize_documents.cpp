#include "data/shard/tokenize_documents.h"

#include <algorithm>

namespace stepc {

void DocumentTokenizer::append(const Document& document, ShardWriter& out, const Tokenizer::Progress& read) {
  out.add_text_bytes(document.text.size());
  if (document.is_chat) return append_chat(document, out);
  const uint64_t begin = out.tokens();
  out.put(prefix_);
  encoder_.encode_parts(
      document.text, [&](std::span<const int32_t> tokens) { out.put(tokens); }, read);
  out.put(suffix_);
  if (separator_ && (suffix_.empty() || suffix_.back() != *separator_)) out.put({&*separator_, 1});
  if (out.tokens() > begin) out.end_document();
}

void DocumentTokenizer::append_chat(const Document& document, ShardWriter& out) {
  tokens_.clear();
  encoder_.encode(document.text, tokens_);
  if (tokens_.empty()) return;
  out.put(tokens_);
  out.end_document(learned(document, tokens_));
}

// A byte range's tokens, whatever the tokenizer does at its borders: those that the text up to its end has in common
// with the whole, without those that the text up to its beginning has.
std::vector<bool> DocumentTokenizer::learned(const Document& document, const std::vector<int32_t>& tokens) {
  std::vector<bool> learned(tokens.size(), false);
  const auto tokens_before = [&](size_t byte) {
    if (byte == document.text.size()) return tokens.size();
    part_.clear();
    encoder_.encode(document.text.substr(0, byte), part_);
    const auto same = std::mismatch(part_.begin(), part_.end(), tokens.begin(), tokens.end()).first;
    return static_cast<size_t>(same - part_.begin());
  };
  for (const auto& [from, to] : document.learned) {
    const size_t first = tokens_before(from);
    const size_t last = tokens_before(to);
    for (size_t i = first; i < last; ++i) learned[i] = true;
  }
  return learned;
}

}  // namespace stepc
