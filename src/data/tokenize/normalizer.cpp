#include "data/tokenize/normalizer.h"

#include "data/tokenize/char_class.h"

namespace stepc {

namespace {
std::string run_step(std::string_view text, UnicodeForm form) { return normalized(text, form); }

std::string run_step(std::string_view text, const PrependStep& step) {
  std::string result = text.empty() ? "" : step.text;
  return result.append(text);
}

std::string run_step(std::string_view text, const ReplaceStep& step) { return replaced(text, step.what, step.with); }

std::string run_step(std::string_view text, const SquashSpacesStep& step) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && text[end] == ' ') ++end;
    if (end - at >= 2) {
      result += step.with;
      at = end;
    } else {
      result += text[at++];
    }
  }
  return result;
}

std::string run_step(std::string_view text, const StripStep& step) {
  size_t begin = 0;
  size_t end = 0;  // after the last character that is no space
  bool only_spaces = true;
  for (size_t at = 0; at < text.size();) {
    const ClassedChar next = classed_char_at(text, at);
    if (next.kind != CharClass::kSpace) {
      if (only_spaces) begin = at;
      only_spaces = false;
      end = at + next.bytes;
    }
    at += next.bytes;
  }
  if (only_spaces) return step.left || step.right ? std::string() : std::string(text);
  if (!step.left) begin = 0;
  if (!step.right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

std::string run_step(std::string_view text, const PrecompiledStep& step) { return step->apply(text); }
}  // namespace

std::string replaced(std::string_view text, std::string_view what, std::string_view with) {
  std::string result;
  result.reserve(text.size());
  while (true) {
    const size_t found = text.find(what);
    result += text.substr(0, found);
    if (found == std::string_view::npos) return result;
    result += with;
    text.remove_prefix(found + what.size());
  }
}

std::string normalized(std::string_view text, const std::vector<NormalizerStep>& steps) {
  std::string result(text);
  for (const NormalizerStep& step : steps)
    result = std::visit([&](const auto& known) { return run_step(result, known); }, step);
  return result;
}

}  // namespace stepc
