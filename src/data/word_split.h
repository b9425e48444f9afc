// GPT-2's split of text into words, which merges never cross, by its own regular expression (PCRE2, compiled to machine
// code where the system allows it).
#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace stepc {

class WordSplit {
 public:
  WordSplit();

  // Calls `word` with the words in order; together they are the text. A run of bytes that is not UTF-8 is one word.
  void operator()(std::string_view text, const std::function<void(std::string_view)>& word) const;

 private:
  struct Program;
  void split_valid(std::string_view text, const std::function<void(std::string_view)>& word) const;

  std::shared_ptr<const Program> program_;  // immutable
};

}  // namespace stepc
