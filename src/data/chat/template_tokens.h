// A template cut into text and tags, and an expression cut into words and signs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stepc {

struct TemplateTag {
  enum class Kind { kText, kPrint, kStatement };
  Kind kind = Kind::kText;
  std::string text;  // of a tag: what is between its braces
  int line = 1;
};

// White space is taken off around the tags as Jinja does with trim_blocks and lstrip_blocks; comments are left out.
std::vector<TemplateTag> cut_tags(std::string_view text, std::string_view what);

struct TemplateToken {
  enum class Kind { kName, kNumber, kText, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;  // of kText without its quotes and escapes
};

std::vector<TemplateToken> cut_tokens(std::string_view expression, int line, std::string_view what);

}  // namespace stepc
