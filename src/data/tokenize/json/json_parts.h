// The parts of tokenizer.json, one function each; parse_tokenizer_json puts them together. `what` names the part.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "data/tokenize/added_tokens.h"
#include "data/tokenize/decoder.h"
#include "data/tokenize/model/model_file.h"
#include "data/tokenize/normalizer.h"
#include "data/tokenize/word_cut.h"

namespace stepc {

std::vector<NormalizerStep> read_normalizer(const Json& json, const std::string& what);
WordCut read_pre_tokenizer(const Json& json, const std::string& what);
std::variant<BpeFile, UnigramFile> read_model(const Json& json, const std::string& what);
std::vector<DecoderStep> read_decoder(const Json& json, const std::string& what);
// The ids before and after a single text.
std::pair<std::vector<int32_t>, std::vector<int32_t>> read_post_processor(const Json& json, const std::string& what);
AddedToken read_added_token(const Json& json, const std::string& what);

}  // namespace stepc
