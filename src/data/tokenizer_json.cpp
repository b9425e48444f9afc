#include "data/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "data/byte_alphabet.h"

namespace stepc {

namespace {
// A JSON object of the file under the name it has in messages; refuses fields that it was not told of.
class Section {
 public:
  Section(const Json& json, std::string what, std::initializer_list<std::string_view> known)
      : json_(json), what_(std::move(what)) {
    USER_CHECK(json.is_object(), "{}: expected an object, found {}", what_, shown(json));
    for (const auto& [key, value] : json.items()) {
      const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
      USER_CHECK(is_known, "{}: field {} is not supported", what_, in_quotes(key));
    }
  }

  // The field is absent or has one of these values; anything else would change what the tokenizer does.
  void only(const std::string& key, std::initializer_list<Json> values) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    const bool good = std::find(values.begin(), values.end(), *found) != values.end();
    USER_CHECK(good, "{}: {} is {}; stepc supports {} only", what_, in_quotes(key), shown_with_type(*found),
               shown(*values.begin()));
  }

  [[nodiscard]] bool flag(const std::string& key, bool otherwise) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return otherwise;
    USER_CHECK(found->is_boolean(), "{}: {} must be true or false, found {}", what_, in_quotes(key), shown(*found));
    return found->get<bool>();
  }

 private:
  static std::string shown_with_type(const Json& value) {
    if (!value.is_object() || !value.contains("type")) return shown(value);
    return str("of type {}", shown(value["type"]));
  }

  const Json& json_;
  std::string what_;
};

void check_type(const Json& json, std::string_view expected, const std::string& what) {
  const std::string& type = json_string(json, "type", what);
  USER_CHECK(type == expected, "{}: type {} is not supported, only \"{}\"", what, in_quotes(type), expected);
}

// A pre-tokenizer, post-processor or decoder: of all kinds only this one.
Section byte_level(const Json& json, const std::string& what) {
  check_type(json, "ByteLevel", what);
  return {json, what, {"type", "add_prefix_space", "trim_offsets", "use_regex"}};
}

void read_model(const Json& json, const std::string& what, TokenizerFile& file) {
  if (!json.is_object() || json.contains("type")) check_type(json, "BPE", what);  // files of old have no type
  const Section model(json, what,
                      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                       "byte_fallback", "ignore_merges", "vocab", "merges"});
  model.only("dropout", {nullptr, 0.0});
  model.only("continuing_subword_prefix", {nullptr, ""});
  model.only("end_of_word_suffix", {nullptr, ""});
  model.only("byte_fallback", {false});
  model.only("ignore_merges", {false});
  // unk_token and fuse_unk never matter: every byte has a token.

  const Json& vocab = json_object(json, "vocab", what);
  for (const auto& [token, id] : vocab.items())
    file.vocab.emplace(token, static_cast<int32_t>(json_int(vocab, token, what + ".vocab", 0, kMaxTokenId)));

  for (const Json& merge : json_array(json, "merges", what)) {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const auto parts = split(text, ' ');
      USER_CHECK(parts.size() == 2, "{}.merges: {} is not two tokens with a space between", what, in_quotes(text));
      file.merges.emplace_back(parts[0], parts[1]);
    } else {
      const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      USER_CHECK(pair, "{}.merges: {} is no pair of tokens", what, shown(merge));
      file.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
  }
}

TokenizerFile::AddedToken read_added_token(const Json& json, const std::string& what) {
  const Section section(json, what, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  section.only("single_word", {false});
  section.only("lstrip", {false});
  section.only("rstrip", {false});
  const bool special = section.flag("special", false);
  TokenizerFile::AddedToken token;
  token.content = json_string(json, "content", what);
  USER_CHECK(!token.content.empty(), "{}: \"content\" is empty", what);
  token.id = static_cast<int32_t>(json_int(json, "id", what, 0, kMaxTokenId));
  token.normalized = section.flag("normalized", !special);
  return token;
}
}  // namespace

TokenizerFile parse_tokenizer_json(std::string_view text, std::string_view what) {
  const std::string name(what);
  const Json json = parse_json(text, name);
  const Section top(json, name,
                    {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
  top.only("version", {"1.0"});
  top.only("truncation", {nullptr});
  top.only("padding", {nullptr});
  top.only("normalizer", {nullptr});

  TokenizerFile file;
  const Section before = byte_level(json_member(json, "pre_tokenizer", name), name + ": pre_tokenizer");
  before.only("add_prefix_space", {false});
  file.split_words = before.flag("use_regex", true);
  byte_level(json_member(json, "decoder", name), name + ": decoder");
  // This one changes character offsets only, which stepc does not give.
  if (json.contains("post_processor") && !json["post_processor"].is_null())
    byte_level(json["post_processor"], name + ": post_processor");
  if (json.contains("added_tokens")) {
    const Json& tokens = json_array(json, "added_tokens", name);
    for (size_t i = 0; i < tokens.size(); ++i)
      file.added_tokens.push_back(read_added_token(tokens[i], str("{}: added_tokens[{}]", name, i)));
  }
  read_model(json_member(json, "model", name), name + ": model", file);
  return file;
}

std::string make_byte_tokenizer_json(const std::vector<std::string>& special_tokens) {
  using OrderedJson = nlohmann::ordered_json;
  constexpr int kBytes = 256;
  OrderedJson added = OrderedJson::array();
  for (size_t i = 0; i < special_tokens.size(); ++i)
    added.push_back({{"id", kBytes + i},
                     {"content", special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  OrderedJson vocab = OrderedJson::object();
  for (int byte = 0; byte < kBytes; ++byte) vocab[alphabet_text(std::string(1, static_cast<char>(byte)))] = byte;
  const OrderedJson level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const OrderedJson json = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", added},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", level},
                            {"post_processor", nullptr},
                            {"decoder", level},
                            {"model",
                             {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocab},
                              {"merges", OrderedJson::array()}}}};
  return json.dump(2) + "\n";
}

std::string make_byte_tokenizer_config_json(const std::string& end_of_text) {
  const nlohmann::ordered_json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                       {"bos_token", end_of_text},
                                       {"eos_token", end_of_text},
                                       {"clean_up_tokenization_spaces", false}};
  return json.dump(2) + "\n";
}

}  // namespace stepc
