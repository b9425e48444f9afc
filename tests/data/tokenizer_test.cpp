#include "data/tokenizer.h"

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

TEST(Tokenizer, ReportsProgress) {
  std::vector<uint64_t> seen;
  const std::string text((3 << 20) + 5, 'x');
  const auto ids = byte_tokenizer().encode(text, [&](uint64_t bytes) { seen.push_back(bytes); });
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(seen, (std::vector<uint64_t>{1 << 20, 2 << 20, 3 << 20, (3 << 20) + 5}));
}

}  // namespace
}  // namespace stepc
