#include "data/tokenize/decoder.h"

#include <charconv>

#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/normalizer.h"

namespace stepc {

namespace {
using Tokens = std::vector<std::string>;

void run_step(Tokens& tokens, const ByteLevelDecode& /*step*/) {
  for (auto& token : tokens) token = alphabet_bytes(token).value_or(token);
}

void run_step(Tokens& tokens, const MetaspaceDecode& step) {
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = replaced(tokens[i], step.mark, i == 0 && step.drop_first ? "" : " ");
}

void run_step(Tokens& tokens, const ReplaceDecode& step) {
  for (auto& token : tokens) token = replaced(token, step.what, step.with);
}

void run_step(Tokens& tokens, const ByteFallbackDecode& /*step*/) {
  for (auto& token : tokens) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') continue;
    unsigned value = 0;
    const char* end = token.data() + 5;
    if (std::from_chars(token.data() + 3, end, value, 16).ptr == end) token = std::string(1, static_cast<char>(value));
  }
}

void run_step(Tokens& tokens, const FuseDecode& /*step*/) {
  std::string all;
  for (const auto& token : tokens) all += token;
  tokens = {all};
}

void run_step(Tokens& tokens, const StripDecode& step) {
  for (auto& token : tokens) {
    for (int i = 0; i < step.left && token.starts_with(step.character); ++i) token.erase(0, 1);
    for (int i = 0; i < step.right && token.ends_with(step.character); ++i) token.pop_back();
  }
}
}  // namespace

std::string decoded(Tokens tokens, const std::vector<DecoderStep>& steps) {
  for (const DecoderStep& step : steps) std::visit([&](const auto& known) { run_step(tokens, known); }, step);
  std::string text;
  for (const auto& token : tokens) text += token;
  return text;
}

}  // namespace stepc
