// Documents to tokens, with what the loss counts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/shard/token_shard.h"
#include "data/source/document.h"
#include "data/tokenizer.h"

namespace stepc {

class DocumentTokenizer {
 public:
  // `separator`: the token after each document that is no chat; none if the tokenizer's own suffix ends it.
  DocumentTokenizer(const Tokenizer& tokenizer, std::optional<int32_t> separator)
      : prefix_(tokenizer.prefix()), suffix_(tokenizer.suffix()), separator_(separator), encoder_(tokenizer) {}

  // Text stands between the tokenizer's prefix and suffix; a chat's template has put everything in already.
  void append(const Document& document, TokenizedDocuments& out);

 private:
  void append_learned(const Document& document, size_t begin, TokenizedDocuments& out);

  std::vector<int32_t> prefix_, suffix_;
  std::optional<int32_t> separator_;
  Tokenizer::Encoder encoder_;
  std::vector<int32_t> part_;
};

}  // namespace stepc
