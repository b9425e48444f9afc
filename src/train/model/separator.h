// What ends a document in a stream of tokens, for a run and for `stepc data` alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace stepc::train {

// The added token "<|endoftext|>" where the tokenizer has it, else the model's own end of text; empty if that is no
// added token either.
std::string separator_of(const Tokenizer& tokenizer, const std::vector<int64_t>& eos_token_ids);

// The same, with the end of text of the model beside the tokenizer, a directory or a file in one. A tokenizer that
// stands alone has none.
std::string separator_of(const Tokenizer& tokenizer, const std::filesystem::path& tokenizer_path);

}  // namespace stepc::train
