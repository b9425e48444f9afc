// The split of text into words, which merges never cross: the four patterns that byte-level tokenizers use, written
// out by hand. tests/data/word_split_test.cpp holds them to the patterns themselves, run by PCRE2.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace stepc {

enum class WordPattern { kNone, kGpt2, kLlama3, kQwen, kBloom };

// The pattern as tokenizer.json spells it; kNone has none. nullopt for a spelling that is none of the four.
std::string_view regex_of(WordPattern pattern);
std::optional<WordPattern> word_pattern_of(std::string_view regex);

// Where the word that begins at text[begin] ends; begin < text.size(). The words one after another are the text. A run
// of bytes that are not UTF-8 is one word, and what is before it is split as if the text ended there.
size_t word_end(WordPattern pattern, std::string_view text, size_t begin);

}  // namespace stepc
