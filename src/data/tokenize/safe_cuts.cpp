#include "data/tokenize/safe_cuts.h"

#include "data/tokenize/char_class.h"
#include "data/utf8.h"

namespace stepc {

namespace {
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool is_graph(char c) { return c > ' ' && c < 0x7F; }

CharClass class_at(std::string_view text, size_t at) { return classed_char_at(text, at).kind; }

bool is_mark_for_space(const NormalizerStep& step) {
  const auto* replace = std::get_if<ReplaceStep>(&step);
  return replace && replace->what == " " && replace->with == kSpaceMark;
}

// Steps that do to both sides of a place what they do to the whole.
bool is_local(const NormalizerStep& step) {
  return is_mark_for_space(step) || std::holds_alternative<UnicodeForm>(step) ||
         std::holds_alternative<PrependStep>(step) || std::holds_alternative<SquashSpacesStep>(step) ||
         std::holds_alternative<PrecompiledStep>(step);
}

// Whether words end before a space between a printable character and a letter.
bool ends_words_at_spaces(const TokenizerFile& file) {
  if (const auto* bytes = std::get_if<ByteLevelCut>(&file.words))
    return bytes->pattern != WordPattern::kNone && !bytes->add_prefix_space;
  if (const auto* marked = std::get_if<MetaspaceCut>(&file.words))
    return marked->mark == kSpaceMark && (marked->split || marked->at_white_space || marked->safe);
  const auto* whole = std::get_if<WholeCut>(&file.words);
  return whole && whole->safe_mark == kSpaceMark && !file.normalizer.empty() &&
         is_mark_for_space(file.normalizer.back());
}
}  // namespace

SafeCuts::SafeCuts(const TokenizerFile& file) {
  at_spaces_ = ends_words_at_spaces(file);
  at_lines_ = at_spaces_ && std::holds_alternative<ByteLevelCut>(file.words);
  for (const NormalizerStep& step : file.normalizer) {
    if (!is_local(step)) at_spaces_ = at_lines_ = false;
    if (!std::holds_alternative<UnicodeForm>(step)) at_lines_ = false;
    // Such a map may make spaces of anything that is not ASCII.
    if (std::holds_alternative<PrecompiledStep>(step)) only_ascii_ = true;
  }
  for (const AddedToken& token : file.added_tokens) {
    heed(token, token.content);
    if (token.normalized) heed(token, normalized(token.content, file.normalizer));
  }
}

// An added token that can stand across a place forbids all of its kind; what could end or begin at one, some.
void SafeCuts::heed(const AddedToken& token, std::string_view spelling) {
  if (spelling.empty()) return;
  const std::string text = replaced(spelling, kSpaceMark, " ");
  ends_token_[static_cast<unsigned char>(text.back())] = true;
  if (token.lstrip) takes_before_[static_cast<unsigned char>(text.front())] = true;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool before = at == 0 ? token.single_word : is_graph(text[at - 1]) || !is_ascii(text[at - 1]);
    const bool after = at + 1 == text.size() || !is_ascii(text[at + 1]) || class_at(text, at + 1) == CharClass::kLetter;
    if (text[at] == ' ' && before && after) at_spaces_ = false;
    if (text[at] == '\n') at_lines_ = false;
  }
}

bool SafeCuts::is_before_space(std::string_view text, size_t at) const {
  if (text[at] != ' ' || at + 1 == text.size() || ends_token_[static_cast<unsigned char>(text[at - 1])]) return false;
  if (only_ascii_ && !(is_ascii(text[at - 1]) && is_ascii(text[at + 1]))) return false;
  if (class_at(text, at + 1) != CharClass::kLetter) return false;
  if (is_ascii(text[at - 1])) return is_graph(text[at - 1]);
  const size_t before = character_before(text, at);
  const ClassedChar last = classed_char_at(text, before);
  return (last.kind == CharClass::kLetter || last.kind == CharClass::kNumber) && before + last.bytes == at;
}

bool SafeCuts::is_behind_line(std::string_view text, size_t at) const {
  if (at < 2 || text[at - 1] != '\n' || takes_before_[static_cast<unsigned char>(text[at])]) return false;
  if (class_at(text, at) != CharClass::kLetter) return false;
  const size_t before = character_before(text, at - 1);
  const ClassedChar last = classed_char_at(text, before);
  return last.kind != CharClass::kSpace && last.kind != CharClass::kInvalid && before + last.bytes == at - 1;
}

size_t SafeCuts::next(std::string_view text, size_t from) const {
  if (!at_spaces_ && !at_lines_) return text.size();
  for (size_t at = from; at < text.size(); ++at)
    if ((at_spaces_ && is_before_space(text, at)) || (at_lines_ && is_behind_line(text, at))) return at;
  return text.size();
}

std::vector<NormalizerStep> steps_of_later_parts(const std::vector<NormalizerStep>& steps) {
  std::vector<NormalizerStep> later;
  for (const NormalizerStep& step : steps)
    if (!std::holds_alternative<PrependStep>(step)) later.push_back(step);
  return later;
}

}  // namespace stepc
