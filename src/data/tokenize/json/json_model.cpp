// The field "model" of tokenizer.json.
#include <cmath>

#include "base/check.h"
#include "base/text.h"
#include "data/tokenize/json/json_parts.h"
#include "data/tokenize/json/json_section.h"

namespace stepc {

namespace {
std::pair<std::string, std::string> read_merge(const Json& merge, const std::string& what) {
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const auto parts = split(text, ' ');
    USER_CHECK(parts.size() == 2, "{}.merges: {} is not two tokens with a space between", what, in_quotes(text));
    return {parts[0], parts[1]};
  }
  const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
  USER_CHECK(pair, "{}.merges: {} is no pair of tokens", what, shown(merge));
  return {merge[0].get<std::string>(), merge[1].get<std::string>()};
}

BpeFile read_bpe(const Json& json, const std::string& what) {
  const JsonSection model(json, what,
                          {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.only("dropout", {nullptr, 0.0});
  model.only("continuing_subword_prefix", {nullptr, ""});
  model.only("end_of_word_suffix", {nullptr, ""});
  BpeFile file;
  file.unk_token = model.text_or_null("unk_token");
  file.byte_fallback = model.flag("byte_fallback", false);
  file.fuse_unk = model.flag("fuse_unk", false);
  file.ignore_merges = model.flag("ignore_merges", false);
  for (const auto& [token, id] : json_object(json, "vocab", what).items())
    file.vocab.emplace(token, static_cast<int32_t>(json_int(json["vocab"], token, what + ".vocab", 0, kMaxTokenId)));
  for (const Json& merge : json_array(json, "merges", what)) file.merges.push_back(read_merge(merge, what));
  return file;
}

UnigramFile read_unigram(const Json& json, const std::string& what) {
  const JsonSection model(json, what, {"type", "unk_id", "vocab", "byte_fallback"});
  UnigramFile file;
  file.byte_fallback = model.flag("byte_fallback", false);
  file.unk_id = static_cast<int32_t>(json_int(json, "unk_id", what, 0, kMaxTokenId));
  const Json& vocab = json_array(json, "vocab", what);
  USER_CHECK(vocab.size() <= kMaxTokenId, "{}: \"vocab\" has {} pieces, stepc takes {}", what, vocab.size(),
             kMaxTokenId);
  for (size_t i = 0; i < vocab.size(); ++i) {
    const Json& piece = vocab[i];
    const bool pair = piece.is_array() && piece.size() == 2 && piece[0].is_string() && piece[1].is_number();
    USER_CHECK(pair && std::isfinite(piece[1].get<double>()), "{}.vocab[{}]: {} is no piece with its score", what, i,
               shown(piece));
    file.pieces.emplace_back(piece[0].get<std::string>(), piece[1].get<double>());
  }
  return file;
}
}  // namespace

std::variant<BpeFile, UnigramFile> read_model(const Json& json, const std::string& what) {
  USER_CHECK(json.is_object(), "{}: expected an object, found {}", what, shown(json));
  const std::string type = json.contains("type") ? json_string(json, "type", what) : "BPE";  // files of old have none
  if (type == "BPE") return read_bpe(json, what);
  if (type == "Unigram") return read_unigram(json, what);
  user_error("{}: type {} is not supported, only \"BPE\" and \"Unigram\"", what, in_quotes(type));
}

}  // namespace stepc
