#include "data/tokenize/word_cut.h"

#include "data/tokenize/char_class.h"
#include "data/tokenize/normalizer.h"

namespace stepc {

namespace {
using Word = std::function<void(std::string_view)>;

void cut_byte_level(const ByteLevelCut& how, std::string_view text, const Word& word) {
  std::string with_space;
  if (how.add_prefix_space && !text.starts_with(' ')) {
    with_space.append(1, ' ').append(text);
    text = with_space;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(how.pattern, text, begin);
    word(text.substr(begin, end - begin));
    begin = end;
  }
}

void cut(const ByteLevelCut& how, std::string_view text, bool /*first*/, const Word& word) {
  using Digits = ByteLevelCut::Digits;
  if (how.digits == Digits::kAsOthers) return cut_byte_level(how, text, word);
  for (size_t begin = 0; begin < text.size();) {
    const ClassedChar first = classed_char_at(text, begin);
    const bool number = first.kind == CharClass::kNumber;
    size_t end = begin + first.bytes;
    while (end < text.size() && !(number && how.digits == Digits::kSingle)) {
      const ClassedChar next = classed_char_at(text, end);
      if ((next.kind == CharClass::kNumber) != number) break;
      end += next.bytes;
    }
    cut_byte_level(how, text.substr(begin, end - begin), word);
    begin = end;
  }
}

void cut(const WholeCut& how, std::string_view text, bool /*first*/, const Word& word) {
  const std::string_view mark = how.safe_mark;
  size_t begin = 0;
  for (size_t at = 0; !mark.empty() && at < text.size();) {
    const size_t found = text.find(mark, at);
    if (found == std::string_view::npos) break;
    if (found > begin) {
      word(text.substr(begin, found - begin));
      begin = found;
    }
    at = found;
    while (text.substr(at).starts_with(mark)) at += mark.size();
  }
  word(text.substr(begin));
}

void cut_marked(const MetaspaceCut& how, std::string_view text, bool first, const Word& word) {
  std::string marked = replaced(text, " ", how.mark);
  const bool wanted =
      how.prepend == MetaspaceCut::Prepend::kAlways || (how.prepend == MetaspaceCut::Prepend::kFirst && first);
  if (wanted && !marked.starts_with(how.mark)) marked.insert(0, how.mark);
  text = marked;
  if (!how.split) return cut(WholeCut{how.safe ? how.mark : std::string()}, text, first, word);
  for (size_t begin = 0; begin < text.size();) {
    const size_t from = text.substr(begin).starts_with(how.mark) ? begin + how.mark.size() : begin;
    const size_t end = std::min(text.find(how.mark, from), text.size());
    word(text.substr(begin, end - begin));
    begin = end;
  }
}

void cut(const MetaspaceCut& how, std::string_view text, bool first, const Word& word) {
  if (!how.at_white_space) return cut_marked(how, text, first, word);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const ClassedChar next = classed_char_at(text, at);
    if (next.kind == CharClass::kSpace) {
      if (at > begin) cut_marked(how, text.substr(begin, at - begin), first && begin == 0, word);
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  if (begin < text.size()) cut_marked(how, text.substr(begin), first && begin == 0, word);
}

void cut(const SpaceCut& /*how*/, std::string_view text, bool /*first*/, const Word& word) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size() - 1) + 1;
    word(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace

void cut_words(const WordCut& how, std::string_view text, bool first, const Word& word) {
  if (!text.empty()) std::visit([&](const auto& known) { cut(known, text, first, word); }, how);
}

}  // namespace stepc
