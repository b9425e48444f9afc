// tokenizer.json: the part of it that stepc reads, as plain data, and the file of a plain byte tokenizer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepc {

// Types are checked, ids are in [0, kMaxTokenId]; whether the parts fit together is not checked here.
struct TokenizerFile {
  struct AddedToken {
    std::string content;
    int32_t id = 0;
    bool normalized = false;
  };
  std::map<std::string, int32_t, std::less<>> vocab;  // spelled in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added_tokens;
  bool split_words = true;  // GPT-2's split before merging
};

inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

// What stepc does not do (another model, a normalizer, ...) is a UserError that names the field; `what` names the file.
TokenizerFile parse_tokenizer_json(std::string_view text, std::string_view what);

// A tokenizer.json of 256 byte tokens, id = byte, and the special tokens from id 256 on.
std::string make_byte_tokenizer_json(const std::vector<std::string>& special_tokens = {"<|endoftext|>"});
// The tokenizer_config.json beside it, with which transformers loads it as it is.
std::string make_byte_tokenizer_config_json(const std::string& end_of_text = "<|endoftext|>");

}  // namespace stepc
