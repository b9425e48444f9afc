// Where a long text may be cut so that its parts, encoded one after another, give the tokens of the whole: what keeps
// the memory of tokenizing one document bounded.
//
//   "... ends here.| The next ..."   before a space that stands between a character and a letter
//   "... ends here.\n|The next ..."  behind a line break that stands so; of byte-level tokenizers only
//
// Nothing that a tokenizer does looks across such a place, but for added tokens that may stand there and for some
// normalizers; where one of those is in use, there is no place.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_json.h"

namespace stepc {

class SafeCuts {
 public:
  // Of no tokenizer: nowhere.
  SafeCuts() = default;
  explicit SafeCuts(const TokenizerFile& file);

  // The first place at or behind `from`, which is not 0; the text's end if there is none.
  [[nodiscard]] size_t next(std::string_view text, size_t from) const;

 private:
  void heed(const AddedToken& token, std::string_view spelling);
  [[nodiscard]] bool is_before_space(std::string_view text, size_t at) const;
  [[nodiscard]] bool is_behind_line(std::string_view text, size_t at) const;

  bool at_spaces_ = false, at_lines_ = false, only_ascii_ = false;
  std::array<bool, 256> ends_token_ = {};    // by byte
  std::array<bool, 256> takes_before_ = {};  // begins an added token that takes the white space before it
};

// The steps for a part that is not the beginning of its text.
std::vector<NormalizerStep> steps_of_later_parts(const std::vector<NormalizerStep>& steps);

}  // namespace stepc
