// How normalized text is cut into the words that the model sees one by one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "data/tokenize/word_split.h"

namespace stepc {

// By a pattern of byte-level tokenizers.
struct ByteLevelCut {
  enum class Digits { kAsOthers, kRuns, kSingle };
  WordPattern pattern = WordPattern::kGpt2;
  bool add_prefix_space = false;  // before text that has none
  // Whether numbers are cut out first, run by run or digit by digit; what lies between is then cut as texts are.
  Digits digits = Digits::kAsOthers;
};
inline constexpr std::string_view kSpaceMark = "\u2581";  // SentencePiece's, for a space
// SentencePiece's: spaces become a mark, which begins a word.
struct MetaspaceCut {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string mark = std::string(kSpaceMark);
  Prepend prepend = Prepend::kAlways;
  bool split = true;
  bool safe = false;            // not split, but no token goes across the beginning of a run of marks: as WholeCut
  bool at_white_space = false;  // white space is dropped first, what lies between is cut
};
// After every space.
struct SpaceCut {};
// Not at all; but where no token goes across the beginning of a run of marks, cutting there changes nothing and spares
// the model words as long as a document.
struct WholeCut {
  std::string safe_mark;  // empty: no such place is known
};
using WordCut = std::variant<ByteLevelCut, MetaspaceCut, SpaceCut, WholeCut>;

// Calls `word` with the words in order. `first`: this is the beginning of the whole text.
void cut_words(const WordCut& cut, std::string_view text, bool first,
               const std::function<void(std::string_view)>& word);

}  // namespace stepc
