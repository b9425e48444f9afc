#include "data/tokenizer.h"

#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck.h>

#include "base/json.h"
#include "data/tokenize/byte_alphabet.h"

namespace stepc {
namespace {

Tokenizer byte_tokenizer() { return Tokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t"); }

// A byte tokenizer with these merges, spelled plainly; ids from 256 on. An added token <|x|> takes the last id.
Tokenizer merging_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json json = parse_json(make_byte_tokenizer_json({}), "t");
  int id = 256;
  for (const auto& [left, right] : merges) {
    json["model"]["vocab"][alphabet_text(left + right)] = id++;
    json["model"]["merges"].push_back({alphabet_text(left), alphabet_text(right)});
  }
  json["added_tokens"].push_back({{"id", id}, {"content", "<|x|>"}, {"special", true}, {"normalized", false}});
  return Tokenizer(parse_tokenizer_json(json.dump(), "t"), "t");
}

using Ids = std::vector<int32_t>;

TEST(Tokenizer, ByteTokensAreTheBytes) {
  const Tokenizer tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.encode("a\xFF\n"), (Ids{97, 255, 10}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.added_token("<|endoftext|>"), 256);
  EXPECT_EQ(tokenizer.added_token("none"), std::nullopt);
}

TEST(Tokenizer, AddedTokensAreFoundFirst) {
  const Tokenizer tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>b<|endoftext"),
            (Ids{97, 256, 98, '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't'}));
  EXPECT_EQ(tokenizer.encode("<|endoftext|><|endoftext|>"), (Ids{256, 256}));
  EXPECT_EQ(tokenizer.decode(Ids{97, 256}), "a<|endoftext|>");
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  const std::string json = make_byte_tokenizer_json({"<a>", "<a><b>", "<a"});
  const Tokenizer tokenizer(parse_tokenizer_json(json, "t"), "t");
  EXPECT_EQ(tokenizer.encode("<a><a><b><ab"), (Ids{256, 257, 258, 'b'}));
}

TEST(Tokenizer, MergesByRankLeftmostFirst) {
  const Tokenizer tokenizer = merging_tokenizer({{"l", "o"}, {"lo", "w"}, {"a", "a"}, {"aa", "aa"}});
  EXPECT_EQ(tokenizer.encode("slow"), (Ids{'s', 257}));
  EXPECT_EQ(tokenizer.encode("aaaaa"), (Ids{259, 'a'}));
  EXPECT_EQ(tokenizer.encode("aaa"), (Ids{258, 'a'}));
  EXPECT_EQ(tokenizer.encode("low<|x|>low"), (Ids{257, 260, 257}));
}

TEST(Tokenizer, MergesDoNotCrossWords) {
  const Tokenizer tokenizer = merging_tokenizer({{"a", " "}, {" ", "b"}, {"1", "a"}});
  EXPECT_EQ(tokenizer.encode("a b"), (Ids{'a', 257}));
  EXPECT_EQ(tokenizer.encode("1a"), (Ids{'1', 'a'}));
}

// As the tokenizers package does it; the vocabulary of GPT-NeoX lacks the bytes that UTF-8 never has.
TEST(Tokenizer, AByteWithoutATokenIsUnknown) {
  Json json = parse_json(make_byte_tokenizer_json(), "t");
  Json& model = json["model"];
  for (const char* lacking : {"z", "y"}) model["vocab"].erase(lacking);
  model["vocab"]["ab"] = 300;
  model["merges"].push_back("a b");
  const auto encoded = [&](std::string_view text) {
    return Tokenizer(parse_tokenizer_json(json.dump(), "t"), "t").encode(text);
  };
  EXPECT_EQ(encoded("azzyb z"), (std::vector<int32_t>{300, ' '}));
  model["unk_token"] = "?";
  EXPECT_EQ(encoded("azzyb z"), (std::vector<int32_t>{'a', '?', '?', '?', 'b', ' ', '?'}));
  model["fuse_unk"] = true;
  EXPECT_EQ(encoded("azzyb z"), (std::vector<int32_t>{'a', '?', 'b', ' ', '?'}));
}

TEST(Tokenizer, SkipsIdsWithoutAToken) {
  EXPECT_EQ(byte_tokenizer().decode(Ids{'a', -1, 257, INT32_MAX, INT32_MIN, 'b'}), "ab");
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  const Tokenizer bytes = byte_tokenizer();
  const Tokenizer merging = merging_tokenizer({{"a", "b"}, {"\xC3", "\xA9"}, {" ", "a"}, {" a", "b"}, {"\n", "\n"}});
  EXPECT_TRUE(rc::check([&] {
    // Often from few symbols, so that merges and broken UTF-8 happen.
    const auto few = rc::gen::element<char>('a', 'b', ' ', '\n', '\xC3', '\xA9', '\xE2', '1', '\'', 's');
    const auto text = *rc::gen::oneOf(rc::gen::container<std::string>(few), rc::gen::arbitrary<std::string>());
    RC_ASSERT(bytes.decode(bytes.encode(text)) == text);
    RC_ASSERT(merging.decode(merging.encode(text)) == text);
  }));
}

TEST(Tokenizer, ALongWordIsNotSlow) {
  const Tokenizer tokenizer = merging_tokenizer({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  const std::string word(1 << 20, 'a');
  EXPECT_EQ(tokenizer.encode(word).size(), word.size() / 8);
}

// With the bytes' own tokens and some that could stand where a long text is cut.
TEST(Tokenizer, ALongTextInPartsHasTheTokensOfTheWhole) {
  const auto parts_of = [](const Json& json, const std::string& text) {
    const Tokenizer tokenizer(parse_tokenizer_json(json.dump(), "t"), "t");
    size_t parts = 0, read = 0;
    Ids ids;
    Tokenizer::Encoder(tokenizer).encode_parts(
        text,
        [&](std::span<const int32_t> part) {
          ids.insert(ids.end(), part.begin(), part.end());
          ++parts;
        },
        [&](uint64_t bytes) { read = bytes; }, 1);
    EXPECT_EQ(ids, tokenizer.encode(text));
    EXPECT_EQ(read, text.size());
    return parts;
  };
  Json json = parse_json(make_byte_tokenizer_json({"<|endoftext|>", "<end>"}), "t");
  json["model"]["vocab"]["ab"] = 300;
  json["model"]["merges"].push_back("a b");
  const std::string text = "ab ab  ab\n\u4E2D\u6587\n\u4E2D x.\nab<end> ab, ab\n ab\n\nab";
  EXPECT_EQ(parts_of(json, text), 7U);
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(parts_of(json, text), 7U);
  Json& token = json["added_tokens"][1];
  token["content"] = "b a";
  EXPECT_EQ(parts_of(json, text), 4U) << "at line breaks only";
  token["content"] = "b\na";
  EXPECT_EQ(parts_of(json, text), 4U) << "at spaces only";
  token["content"] = "abc";
  token["lstrip"] = true;
  EXPECT_EQ(parts_of(json, text), 6U);
  json["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(parts_of(json, text), 1U);
}

TEST(Tokenizer, ReportsProgress) {
  std::vector<uint64_t> seen;
  const std::string text((3 << 20) + 5, 'x');
  const auto ids = byte_tokenizer().encode(text, [&](uint64_t bytes) { seen.push_back(bytes); });
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(seen, (std::vector<uint64_t>{1 << 20, 2 << 20, 3 << 20, (3 << 20) + 5}));
}

}  // namespace
}  // namespace stepc
