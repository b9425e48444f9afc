// Every damaged tokenizer.json is a UserError that names what is wrong.
#include <functional>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "data/tokenizer.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

void load(const std::string& text) { Tokenizer(parse_tokenizer_json(text, "tokenizer.json"), "tokenizer.json"); }

Json good() {
  Json json = parse_json(make_byte_tokenizer_json(), "t");
  json["model"]["vocab"]["ab"] = 257;
  json["model"]["merges"].push_back("a b");
  return json;
}

struct Case {
  const char* message;
  std::function<void(Json&)> damage;
};

TEST(TokenizerError, GoodFileLoads) { EXPECT_NO_THROW(load(good().dump())); }

TEST(TokenizerError, NamesTheField) {
  const Case cases[] = {
      {"field \"extra\" is not supported", [](Json& j) { j["extra"] = 1; }},
      {"\"version\" is \"2.0\"", [](Json& j) { j["version"] = "2.0"; }},
      {"normalizer: type \"Lowercase\" is not supported", [](Json& j) { j["normalizer"]["type"] = "Lowercase"; }},
      {"normalizer: field \"x\" is not supported",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFC"}, {"x", 1}};
       }},
      {"normalizer: \"precompiled_charsmap\" is not base64",
       [](Json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "!!!!"}};
       }},
      {"normalizer: the character map says its trie has 16777216 bytes, and 2 follow",
       [](Json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAAAQAA"}};
       }},
      {"pattern \"a+\" is not supported",
       [](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", ""}};
       }},
      {"normalizer.pattern is empty",
       [](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}};
       }},
      {"normalizer.normalizers[1]: type \"Nmt\" is not supported",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
       }},
      {"\"truncation\" must be an object or null, found a list", [](Json& j) { j["truncation"] = Json::array(); }},
      {"\"padding\" must be an object or null, found 3", [](Json& j) { j["padding"] = 3; }},
      {"\"Digits\" is supported before \"ByteLevel\" only",
       [](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Sequence"},
             {"pretokenizers",
              {{{"type", "Digits"}, {"individual_digits", true}}, {{"type", "Metaspace"}, {"replacement", "_"}}}}};
       }},
      {"pre_tokenizer: field \"digits\" is not supported",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Digits"}, {"digits", true}};
       }},
      {"pre_tokenizer: type \"Whitespace\" is not supported",
       [](Json& j) { j["pre_tokenizer"]["type"] = "Whitespace"; }},
      {"pre_tokenizer.pretokenizers[1]: type \"Metaspace\" is not supported in this place",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {j["pre_tokenizer"], {{"type", "Metaspace"}, {"replacement", "_"}}}}};
       }},
      {"pre_tokenizer: pattern \"a b\" is not supported, only those of GPT-2, Llama 3, Qwen and Bloom",
       [](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"Regex", "a b"}}}, {"behavior", "Isolated"}, {"invert", false}};
       }},
      {"prepend_scheme \"last\" is not supported",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
       }},
      {"\"use_regex\" must be true or false, found 1", [](Json& j) { j["pre_tokenizer"]["use_regex"] = 1; }},
      {"\"decoder\" is missing", [](Json& j) { j.erase("decoder"); }},
      {"decoder: type \"WordPiece\"",
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       }},
      {"post_processor: type \"BertProcessing\" is not supported",
       [](Json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       }},
      {"post_processor: \"single\" is missing",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}};
       }},
      {"post_processor: \"single\" has no text",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}};
       }},
      {"\"model\" is missing", [](Json& j) { j.erase("model"); }},
      {"model: expected an object, found a list", [](Json& j) { j["model"] = Json::array(); }},
      {"model: type \"WordPiece\" is not supported", [](Json& j) { j["model"]["type"] = "WordPiece"; }},
      {"a Unigram model with a byte-level split is not supported",
       [](Json& j) {
         j["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array({Json::array({"<unk>", 0.0})})}};
       }},
      {"model.vocab[0]: a list is no piece with its score",
       [](Json& j) {
         j["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array({Json::array({"<unk>", "0"})})}};
       }},
      {"model.unk_id is 7, and model.vocab has 1",
       [](Json& j) {
         j["pre_tokenizer"] = nullptr;
         j["model"] = {{"type", "Unigram"}, {"unk_id", 7}, {"vocab", Json::array({Json::array({"<unk>", 0.0})})}};
       }},
      {"model.unk_token is \"<unk>\", which model.vocab lacks",
       [](Json& j) {
         j["pre_tokenizer"] = nullptr;
         j["model"]["unk_token"] = "<unk>";
       }},
      {"model: \"type\" must be text", [](Json& j) { j["model"]["type"] = 5; }},
      {"model: \"dropout\" is 0.5", [](Json& j) { j["model"]["dropout"] = 0.5; }},
      {"model: \"byte_fallback\" is true", [](Json& j) { j["model"]["byte_fallback"] = true; }},
      {"model: \"ignore_merges\" must be true or false, found 3", [](Json& j) { j["model"]["ignore_merges"] = 3; }},
      {"model: \"end_of_word_suffix\" is \"</w>\"", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"model: field \"scores\" is not supported", [](Json& j) { j["model"]["scores"] = 1; }},
      {"\"vocab\" must be an object, found a list", [](Json& j) { j["model"]["vocab"] = Json::array(); }},
      {"\"merges\" must be a list", [](Json& j) { j["model"]["merges"] = Json::object(); }},
      {"\"merges\" is missing", [](Json& j) { j["model"].erase("merges"); }},
      {"model.vocab: \"ab\" must be a whole number from 0 to", [](Json& j) { j["model"]["vocab"]["ab"] = -1; }},
      {"found 4194304", [](Json& j) { j["model"]["vocab"]["ab"] = 4194304; }},
      {"found 18446744073709551615", [](Json& j) { j["model"]["vocab"]["ab"] = UINT64_MAX; }},
      {"found 1.5", [](Json& j) { j["model"]["vocab"]["ab"] = 1.5; }},
      {"found \"7\"", [](Json& j) { j["model"]["vocab"]["ab"] = "7"; }},
      {"gives id 97 to two tokens", [](Json& j) { j["model"]["vocab"]["ab"] = 97; }},
      {"model.unk_token is \"<unk>\", which model.vocab lacks",
       [](Json& j) {
         j["model"]["vocab"].erase("a");
         j["model"]["merges"] = Json::array();
         j["model"]["unk_token"] = "<unk>";
       }},
      {"has an empty token", [](Json& j) { j["model"]["vocab"][""] = 300; }},
      {"needs the token \"ab\", which model.vocab lacks", [](Json& j) { j["model"]["vocab"].erase("ab"); }},
      {"needs the token \"xyz\"", [](Json& j) { j["model"]["merges"].push_back("xyz a"); }},
      {"has \"a\" \"b\" twice",
       [](Json& j) {
         j["model"]["merges"].push_back({"a", "b"});
       }},
      {"\"ab\" is not two tokens", [](Json& j) { j["model"]["merges"].push_back("ab"); }},
      {"\"a b c\" is not two tokens", [](Json& j) { j["model"]["merges"].push_back("a b c"); }},
      {"a list is no pair of tokens",
       [](Json& j) {
         j["model"]["merges"].push_back({"a", "b", "c"});
       }},
      {"7 is no pair of tokens", [](Json& j) { j["model"]["merges"].push_back(7); }},
      {"\"added_tokens\" must be a list", [](Json& j) { j["added_tokens"] = 1; }},
      {"added_tokens[0]: expected an object", [](Json& j) { j["added_tokens"][0] = 1; }},
      {"added_tokens[0]: \"content\" is empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; }},
      {"added_tokens[0]: \"content\" is missing", [](Json& j) { j["added_tokens"][0].erase("content"); }},
      {"added_tokens[0]: \"id\" must be a whole number", [](Json& j) { j["added_tokens"][0]["id"] = 1e18; }},
      {"added_tokens[0]: \"id\" must be a whole number", [](Json& j) { j["added_tokens"][0]["id"] = INT64_MAX; }},
      {"added_tokens[0]: \"lstrip\" must be true or false", [](Json& j) { j["added_tokens"][0]["lstrip"] = 1; }},
      {"has id 97, which another token has", [](Json& j) { j["added_tokens"][0]["id"] = 97; }},
      {"has id 256, in model.vocab it has 97", [](Json& j) { j["added_tokens"][0]["content"] = "a"; }},
      {"is there twice",
       [](Json& j) {
         j["model"]["vocab"]["<|endoftext|>"] = 256;
         j["added_tokens"].push_back(j["added_tokens"][0]);
       }},
  };
  for (const Case& damaged : cases) {
    Json json = good();
    damaged.damage(json);
    EXPECT_USER_ERROR(load(json.dump()), damaged.message);
    EXPECT_USER_ERROR(load(json.dump()), "tokenizer.json: ");
  }
}

TEST(TokenizerError, BadText) {
  EXPECT_USER_ERROR(load(""), "not valid JSON");
  EXPECT_USER_ERROR(load("[]"), "expected an object, found a list");
  EXPECT_USER_ERROR(load("null"), "expected an object, found null");
  EXPECT_USER_ERROR(load(std::string(100'000, '[')), "nested more than");
  EXPECT_USER_ERROR(load(R"({"model":{"vocab":{"a":1,"a":2}}})"), "duplicate key \"a\"");
  const TempDir dir;
  EXPECT_USER_ERROR(Tokenizer::load(dir / "tokenizer.json"), "No such file or directory");
}

// Whatever bytes are changed, the file loads or is refused; nothing else may happen.
TEST(TokenizerError, RandomDamage) {
  const std::string text = good().dump();
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string damaged = text;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    if (round % 3 == 0) damaged.resize(random() % damaged.size());
    try {
      load(damaged);
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace stepc
