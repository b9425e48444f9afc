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

  // Text stands between the tokenizer's prefix and suffix; a chat's template has put everything in already. A document
  // without tokens is none. `read` is called now and then with the number of the text's bytes that are done with.
  void append(const Document& document, ShardWriter& out, const Tokenizer::Progress& read = {});

 private:
  void append_chat(const Document& document, ShardWriter& out);
  std::vector<bool> learned(const Document& document, const std::vector<int32_t>& tokens);

  std::vector<int32_t> prefix_, suffix_;
  std::optional<int32_t> separator_;
  Tokenizer::Encoder encoder_;
  std::vector<int32_t> tokens_, part_;
};

}  // namespace stepc
