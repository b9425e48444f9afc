// From one word to its tokens. Immutable and safe to use from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "data/tokenize/model/model_file.h"

namespace stepc {

class WordModel {
 public:
  WordModel() = default;
  virtual ~WordModel() = default;
  WordModel(const WordModel&) = delete;
  WordModel& operator=(const WordModel&) = delete;

  // Appends the tokens of the word, which is not empty.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;
};

// A UserError where the parts of the file do not fit together; `what` names the file.
std::unique_ptr<const WordModel> make_byte_bpe(const BpeFile& file, std::string_view what);
std::unique_ptr<const WordModel> make_char_bpe(const BpeFile& file, std::string_view what);
std::unique_ptr<const WordModel> make_unigram(const UnigramFile& file, std::string_view what);

}  // namespace stepc
