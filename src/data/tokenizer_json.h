// tokenizer.json: the part of it that stepc reads, as plain data, and the file of a plain byte tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenize/added_tokens.h"
#include "data/tokenize/decoder.h"
#include "data/tokenize/model/model_file.h"
#include "data/tokenize/normalizer.h"
#include "data/tokenize/word_cut.h"

namespace stepc {

// Types are checked, ids are in [0, kMaxTokenId]; whether the parts fit together is not checked here.
struct TokenizerFile {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  WordCut words;
  std::variant<BpeFile, UnigramFile> model;
  std::vector<DecoderStep> decoder;
  std::vector<int32_t> prefix, suffix;  // what the post-processor puts around a text
  uint64_t hash = 0;                    // of the file's text
};

// What stepc does not do (another model, another normalizer, ...) is a UserError that names the field; `what` names
// the file.
TokenizerFile parse_tokenizer_json(std::string_view text, std::string_view what);

// A tokenizer.json of 256 byte tokens, id = byte, and the special tokens from id 256 on.
std::string make_byte_tokenizer_json(const std::vector<std::string>& special_tokens = {"<|endoftext|>"});
// The tokenizer_config.json beside it, with which transformers loads it as it is.
std::string make_byte_tokenizer_config_json(const std::string& end_of_text = "<|endoftext|>");

}  // namespace stepc
