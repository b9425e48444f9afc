#include "data/tokenizer_json.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/json.h"
#include "data/tokenize/json/json_parts.h"
#include "data/tokenize/json/json_section.h"

namespace stepc {

namespace {
// No token goes from a character into a mark, so words may be cut there.
bool safe_to_cut_at_mark(const BpeFile& file) {
  if (file.ignore_merges || !file.vocab.contains(kSpaceMark)) return false;
  for (const auto& [token, id] : file.vocab) {
    size_t at = 0;
    while (token.compare(at, kSpaceMark.size(), kSpaceMark) == 0) at += kSpaceMark.size();
    if (token.find(kSpaceMark, at) != std::string::npos) return false;
  }
  return true;
}

bool leaves_no_space(const std::vector<NormalizerStep>& steps) {
  const auto* last = steps.empty() ? nullptr : std::get_if<ReplaceStep>(&steps.back());
  return last && last->what == " " && last->with == kSpaceMark;
}

// Characters may disappear from the beginning; then `tokenizers` does not see the beginning of the text any more.
bool keeps_beginning(const std::vector<NormalizerStep>& steps) {
  for (const auto& step : steps)
    if (!std::holds_alternative<UnicodeForm>(step) && !std::holds_alternative<ReplaceStep>(step)) return false;
  return true;
}
}  // namespace

TokenizerFile parse_tokenizer_json(std::string_view text, std::string_view what) {
  const std::string name(what);
  const Json json = parse_json(text, name);
  const JsonSection top(json, name,
                        {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                         "post_processor", "decoder", "model"});
  top.only("version", {"1.0"});
  // How the last caller wanted batches to be cut and filled: transformers saves it and sets its own at each call. A
  // text is encoded as it is.
  for (const char* batches : {"truncation", "padding"}) top.object_or_null(batches);
  const auto part = [&](const std::string& key) {
    const auto found = json.find(key);
    return found == json.end() ? Json() : *found;
  };

  TokenizerFile file;
  file.hash = hash_bytes(std::as_bytes(std::span(text)));
  file.normalizer = read_normalizer(part("normalizer"), name + ": normalizer");
  file.words = read_pre_tokenizer(part("pre_tokenizer"), name + ": pre_tokenizer");
  file.decoder = read_decoder(json_member(json, "decoder", name), name + ": decoder");
  std::tie(file.prefix, file.suffix) = read_post_processor(part("post_processor"), name + ": post_processor");
  if (json.contains("added_tokens")) {
    const Json& tokens = json_array(json, "added_tokens", name);
    for (size_t i = 0; i < tokens.size(); ++i)
      file.added_tokens.push_back(read_added_token(tokens[i], str("{}: added_tokens[{}]", name, i)));
  }
  file.model = read_model(json_member(json, "model", name), name + ": model");

  const bool byte_level = std::holds_alternative<ByteLevelCut>(file.words);
  if (const auto* metaspace = std::get_if<MetaspaceCut>(&file.words)) {
    const bool first = metaspace->prepend == MetaspaceCut::Prepend::kFirst;
    USER_CHECK(!first || keeps_beginning(file.normalizer),
               "{}: pre_tokenizer: prepend_scheme \"first\" is not supported with this normalizer", name);
  }
  if (auto* bpe = std::get_if<BpeFile>(&file.model)) {
    bpe->byte_level = byte_level;
    USER_CHECK(!byte_level || !bpe->byte_fallback, "{}: model: \"byte_fallback\" is true with a byte-level split",
               name);
    const bool safe = !byte_level && safe_to_cut_at_mark(*bpe);
    // Behind a normalizer that leaves no space, a split at spaces does nothing (Gemma's).
    if (std::holds_alternative<SpaceCut>(file.words) && leaves_no_space(file.normalizer)) file.words = WholeCut();
    auto* whole = std::get_if<WholeCut>(&file.words);
    if (whole && safe) whole->safe_mark = kSpaceMark;
    auto* marked = std::get_if<MetaspaceCut>(&file.words);
    if (marked && safe) marked->safe = marked->mark == kSpaceMark;
  } else {
    USER_CHECK(!byte_level, "{}: a Unigram model with a byte-level split is not supported", name);
  }
  return file;
}

}  // namespace stepc
