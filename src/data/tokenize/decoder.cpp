#include "data/tokenize/decoder.h"

#include <charconv>
#include <optional>

#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/normalizer.h"
#include "data/utf8.h"

namespace stepc {

namespace {
using Tokens = std::vector<std::string>;

// A character's bytes may lie in several tokens, so they are joined.
void run_step(Tokens& tokens, const ByteLevelDecode& /*step*/, InvalidBytes invalid) {
  std::string all;
  for (const auto& token : tokens) all += alphabet_bytes(token).value_or(token);
  tokens = {invalid == InvalidBytes::kReplaced ? well_formed(all) : std::move(all)};
}

void run_step(Tokens& tokens, const MetaspaceDecode& step, InvalidBytes /*invalid*/) {
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = replaced(tokens[i], step.mark, i == 0 && step.drop_first ? "" : " ");
}

void run_step(Tokens& tokens, const ReplaceDecode& step, InvalidBytes /*invalid*/) {
  for (auto& token : tokens) token = replaced(token, step.what, step.with);
}

// The byte that a token such as "<0xE2>" stands for.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const char* end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

// Neighbouring byte tokens are characters together, or each of them is none.
void run_step(Tokens& tokens, const ByteFallbackDecode& /*step*/, InvalidBytes invalid) {
  for (size_t begin = 0; begin < tokens.size(); ++begin) {
    std::string bytes;
    size_t end = begin;
    for (; end < tokens.size(); ++end) {
      const auto byte = byte_of(tokens[end]);
      if (!byte) break;
      bytes += *byte;
    }
    const bool replaced = invalid == InvalidBytes::kReplaced && well_formed(bytes) != bytes;
    for (size_t i = begin; i < end; ++i) tokens[i] = replaced ? "\xEF\xBF\xBD" : std::string(1, bytes[i - begin]);
    begin = end;
  }
}

void run_step(Tokens& tokens, const FuseDecode& /*step*/, InvalidBytes /*invalid*/) {
  std::string all;
  for (const auto& token : tokens) all += token;
  tokens = {all};
}

void run_step(Tokens& tokens, const StripDecode& step, InvalidBytes /*invalid*/) {
  for (auto& token : tokens) {
    for (int i = 0; i < step.left && token.starts_with(step.character); ++i) token.erase(0, 1);
    for (int i = 0; i < step.right && token.ends_with(step.character); ++i) token.pop_back();
  }
}
}  // namespace

std::string decoded(Tokens tokens, const std::vector<DecoderStep>& steps, InvalidBytes invalid) {
  for (const DecoderStep& step : steps) std::visit([&](const auto& known) { run_step(tokens, known, invalid); }, step);
  std::string text;
  for (const auto& token : tokens) text += token;
  return text;
}

}  // namespace stepc
