#include "data/inspect/shown_row.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "data/utf8.h"

namespace stepc {

namespace {
constexpr std::array<int, 6> kColours = {36, 33, 35, 32, 34, 31};  // cyan, yellow, magenta, green, blue, red
constexpr std::string_view kReset = "\x1b[0m";

// Tokens of one document that are all learned or all not.
struct Run {
  size_t begin, end;
  bool learned;
};

// A token is learned if the label before it is one. Nothing predicts the first.
std::vector<Run> runs_of(const PackedRow& row) {
  std::vector<Run> runs;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    const bool learned = i > 0 && row.labels[i - 1] != PackedRow::kNoLabel;
    const bool same = i > 0 && row.documents[i] == row.documents[i - 1] && learned == runs.back().learned;
    if (same) {
      runs.back().end = i + 1;
    } else {
      runs.push_back({i, i + 1, learned});
    }
  }
  return runs;
}

void append_visible(std::string& out, std::string_view text, bool keep_newlines) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = decode_utf8(text, at);
    const bool control = next.value < 0x20 || (next.value >= 0x7F && next.value < 0xA0);
    if (next.bytes == 0) {
      out += "\uFFFD";
    } else if (text[at] == '\n') {
      out += keep_newlines ? "\u23CE\n" : "\u23CE";
    } else if (control) {
      append_utf8(out, next.value < 0x20 ? 0x2400 + next.value : 0xFFFD);  // Unicode's pictures of control codes
    } else {
      out += text.substr(at, next.bytes);
    }
    at += std::max<size_t>(next.bytes, 1);
  }
}

// The text of the tokens, with a bar where a token ends and its last character is whole.
std::string text_of(const Tokenizer& tokenizer, std::span<const int64_t> tokens, const ShownRowOptions& options) {
  const auto decoded = [&](size_t begin, size_t end) {
    const std::vector<int32_t> ids(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                   tokens.begin() + static_cast<ptrdiff_t>(end));
    return tokenizer.decode(ids);
  };
  std::string out;
  if (!options.borders) {
    append_visible(out, decoded(0, tokens.size()), options.colour);
    return out;
  }
  for (size_t begin = 0; begin < tokens.size();) {
    constexpr size_t kMostPartsOfAChar = 4;
    size_t end = begin + 1;
    const auto whole = [&](std::string_view text) {
      size_t at = 0;
      for (size_t bytes = 0; at < text.size() && (bytes = decode_utf8(text, at).bytes) > 0;) at += bytes;
      return at == text.size();
    };
    std::string text = decoded(begin, end);
    while (!whole(text) && end < tokens.size() && end - begin < kMostPartsOfAChar) text = decoded(begin, ++end);
    append_visible(out, text, options.colour);
    out += '|';
    begin = end;
  }
  return out;
}
}  // namespace

size_t learned_tokens(const PackedRow& row) {
  return static_cast<size_t>(
      std::count_if(row.labels.begin(), row.labels.end(), [](int64_t label) { return label != PackedRow::kNoLabel; }));
}

std::string shown_row(const Tokenizer& tokenizer, const PackedRow& row, const ShownRowOptions& options) {
  std::string out;
  for (const Run& run : runs_of(row)) {
    const int64_t document = row.documents[run.begin];
    const std::string text = text_of(tokenizer, row.tokens.subspan(run.begin, run.end - run.begin), options);
    if (options.colour) {
      const int colour = kColours[static_cast<size_t>(document) % kColours.size()];
      out += str("\x1b[{}{}m{}{}", run.learned ? "" : "2;", colour, text, kReset);
    } else {
      out +=
          str("document {}, {} {}: {}\n", document, run.end - run.begin, run.learned ? "learned" : "not learned", text);
    }
  }
  if (options.colour && !out.empty()) out += "\n";
  return out;
}

}  // namespace stepc
