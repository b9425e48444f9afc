// From the spelling of tokens back to text: the decoders of tokenizer.json as a list of steps over the list of tokens,
// which are joined at the end.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace stepc {

// GPT-2's alphabet back to bytes.
struct ByteLevelDecode {};
// Spaces for the mark; none where the first token begins, if one was put there.
struct MetaspaceDecode {
  std::string mark;
  bool drop_first = true;
};
struct ReplaceDecode {
  std::string what, with;
};
// "<0xE2>" is that byte.
struct ByteFallbackDecode {};
// All tokens become one.
struct FuseDecode {};
// Takes at most so many of a character off the ends of each token.
struct StripDecode {
  char character = ' ';
  int left = 0, right = 0;
};
using DecoderStep =
    std::variant<ByteLevelDecode, MetaspaceDecode, ReplaceDecode, ByteFallbackDecode, FuseDecode, StripDecode>;

// What becomes of the bytes of byte tokens that are no UTF-8.
enum class InvalidBytes {
  kKept,
  kReplaced  // by U+FFFD, as often as the tokenizers package puts it
};

std::string decoded(std::vector<std::string> tokens, const std::vector<DecoderStep>& steps, InvalidBytes invalid);

}  // namespace stepc
