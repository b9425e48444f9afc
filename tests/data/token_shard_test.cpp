#include "data/shard/token_shard.h"

#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "base/hash.h"
#include "data/shard/token_stream.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

TokenizedDocuments documents(std::vector<int32_t> tokens, std::vector<uint64_t> ends, std::vector<bool> learned = {}) {
  return {std::move(tokens), std::move(ends), std::move(learned), 7};
}

std::vector<int64_t> all_tokens(const TokenShard& shard) {
  std::vector<int64_t> out(shard.size());
  shard.copy(0, out);
  return out;
}

TEST(TokenShard, GivesBackWhatWasWritten) {
  const TempDir dir;
  for (const int32_t vocab : {300, 70'000}) {
    write_shard(dir / "a", documents({5, 0, vocab - 1, 7, 8}, {2, 2, 5}, {true, false, true, true, false}), vocab);
    const TokenShard shard(dir / "a");
    EXPECT_EQ(shard.header().token_bytes, vocab == 300 ? 2U : 4U);
    EXPECT_EQ(all_tokens(shard), (std::vector<int64_t>{5, 0, vocab - 1, 7, 8}));
    EXPECT_EQ(std::vector<uint64_t>(shard.ends().begin(), shard.ends().end()), (std::vector<uint64_t>{2, 2, 5}));
    EXPECT_TRUE(shard.learned(0) && !shard.learned(1) && shard.learned(3) && !shard.learned(4));
    EXPECT_EQ(shard.header().text_bytes, 7U);
    EXPECT_NO_THROW(shard.verify());
  }
  write_shard(dir / "none", documents({}, {}), 300);
  EXPECT_EQ(TokenShard(dir / "none").size(), 0U);
}

class DamagedShard : public ::testing::Test {
 protected:
  void SetUp() override {
    write_shard(dir_ / "good", documents({1, 2, 3, 4, 5}, {2, 5}, {true, false, true, true, false}), 300);
    good_ = read_text(dir_ / "good", 1 << 20);
  }
  std::filesystem::path damaged(const std::string& bytes) {
    std::ofstream(dir_ / "bad", std::ios::binary) << bytes;
    return dir_ / "bad";
  }
  // The header with a field changed, and its hash made right again.
  std::filesystem::path forged(const std::function<void(ShardHeader&)>& change) {
    ShardHeader header;
    std::memcpy(&header, good_.data(), sizeof header);
    change(header);
    const auto fields = std::as_bytes(std::span(&header, 1)).first(offsetof(ShardHeader, header_hash));
    header.header_hash = hash_bytes(fields);
    std::string bytes = good_;
    std::memcpy(bytes.data(), &header, sizeof header);
    return damaged(bytes);
  }

  TempDir dir_;
  std::string good_;
};

TEST_F(DamagedShard, IsRefused) {
  EXPECT_USER_ERROR(TokenShard(dir_ / "missing"), "No such file");
  EXPECT_USER_ERROR(TokenShard(damaged("")), "no token shard: 0 bytes");
  EXPECT_USER_ERROR(TokenShard(damaged(std::string(64, 'x'))), "no token shard: it begins with 7878787878787878");
  EXPECT_USER_ERROR(TokenShard(damaged(good_.substr(0, good_.size() - 8))), "do not hold 5 tokens of 2 documents");
  EXPECT_USER_ERROR(TokenShard(damaged(good_ + "12345678")), "do not hold 5 tokens");
  EXPECT_USER_ERROR(TokenShard(forged([](ShardHeader& h) { h.token_count = UINT64_MAX / 2 + 3; })), "do not hold");
  EXPECT_USER_ERROR(TokenShard(forged([](ShardHeader& h) { h.document_count = UINT64_MAX / 8 + 2; })), "do not hold");
  EXPECT_USER_ERROR(TokenShard(forged([](ShardHeader& h) { h.token_bytes = 3; })), "do not hold");
  EXPECT_USER_ERROR(TokenShard(forged([](ShardHeader& h) { h.vocab_size = 0; })), "do not hold");
  EXPECT_USER_ERROR(TokenShard(forged([](ShardHeader& h) { h.has_learned = 2; })), "do not hold");
  std::string ends = good_;
  ends[64 + 16] = 9;  // the first document's end
  EXPECT_USER_ERROR(TokenShard(damaged(ends)), "a document ends at 9 after 0");
  ends = good_;
  ends[64 + 16 + 8] = 4;
  EXPECT_USER_ERROR(TokenShard(damaged(ends)), "the last document ends at 4 of 5 tokens");
  EXPECT_USER_ERROR(all_tokens(TokenShard(forged([](ShardHeader& h) { h.vocab_size = 5; }))),
                    "token 5 in a vocabulary of 5");
}

TEST_F(DamagedShard, EveryByteIsNoticed) {
  for (size_t at = 0; at < good_.size(); ++at) {
    std::string bytes = good_;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    EXPECT_THROW(TokenShard(damaged(bytes)).verify(), UserError) << at;
  }
}

// Random damage behind the header: whatever is read is in the vocabulary or refused.
TEST_F(DamagedShard, NeverGivesATokenOutsideTheVocabulary) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::string bytes = good_;
    for (int i = 0; i < 3; ++i) bytes[64 + random() % (bytes.size() - 64)] = static_cast<char>(random());
    try {
      for (const int64_t token : all_tokens(TokenShard(damaged(bytes)))) ASSERT_LT(token, 300);
    } catch (const UserError&) {
    }
  }
}

struct Row {
  std::vector<int64_t> tokens, labels, positions, documents;
  Row(const TokenStream& stream, uint64_t begin, size_t seq)
      : tokens(seq), labels(seq), positions(seq), documents(seq) {
    stream.fill(begin, {tokens, labels, positions, documents});
  }
};

TEST(TokenStream, ResetsAtDocumentEndsAcrossShards) {
  const TempDir dir;
  write_shard(dir / "a", documents({1, 2, 3, 4}, {3, 4}), 300);
  write_shard(dir / "empty", documents({}, {}), 300);
  write_shard(dir / "b", documents({5, 6, 7, 8, 9}, {2, 2, 5}), 300);
  const TokenStream stream({dir / "a", dir / "empty", dir / "b"});
  EXPECT_EQ(stream.size(), 9U);
  EXPECT_EQ(stream.documents(), 5U);
  const Row row(stream, 1, 7);
  EXPECT_EQ(row.tokens, (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(row.positions, (std::vector<int64_t>{0, 1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(row.documents, (std::vector<int64_t>{0, 0, 1, 2, 2, 3, 3}));
  EXPECT_EQ(row.labels, (std::vector<int64_t>{3, -100, -100, 6, -100, 8, 9}));
  // A row that ends where a document ends: its last label would be another document's token.
  EXPECT_EQ(Row(stream, 0, 3).labels, (std::vector<int64_t>{2, 3, -100}));
}

TEST(TokenStream, HidesWhatIsNotLearned) {
  const TempDir dir;
  write_shard(dir / "a", documents({1, 2, 3, 4}, {4}, {false, true, false, true}), 300);
  write_shard(dir / "b", documents({5, 6}, {2}), 300);
  const TokenStream stream({dir / "a", dir / "b"});
  EXPECT_EQ(Row(stream, 0, 5).labels, (std::vector<int64_t>{2, -100, 4, -100, 6}));
}

// Every label is the loss's own definition: the next token of the same document, if it is learned.
TEST(TokenStream, RandomStreamsFollowTheDefinition) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    const TempDir dir;
    std::vector<int32_t> tokens;
    std::vector<int64_t> document_of;
    std::vector<bool> learned;
    std::vector<std::filesystem::path> paths;
    int64_t document = 0;
    for (int shard = 0; shard < 3; ++shard) {
      TokenizedDocuments made;
      const bool masked = random() % 2 == 0;
      for (size_t count = random() % 4; count > 0; --count, ++document) {
        for (size_t i = random() % 6; i > 0; --i) {
          made.tokens.push_back(static_cast<int32_t>(random() % 300));
          if (masked) made.learned.push_back(random() % 2 == 0);
          tokens.push_back(made.tokens.back());
          learned.push_back(!masked || made.learned.back());
          document_of.push_back(document);
        }
        made.ends.push_back(made.tokens.size());
      }
      paths.push_back(dir / std::to_string(shard));
      write_shard(paths.back(), made, 300);
    }
    const TokenStream stream(paths);
    ASSERT_EQ(stream.size(), tokens.size());
    for (size_t begin = 0; begin + 1 < tokens.size(); ++begin) {
      const size_t seq = 1 + random() % (tokens.size() - begin - 1);
      const Row row(stream, begin, seq);
      int64_t number = 0;
      int64_t position = 0;
      for (size_t i = 0; i < seq; ++i) {
        const size_t at = begin + i;
        if (i > 0 && document_of[at] != document_of[at - 1]) ++number, position = 0;
        const bool has_label = document_of[at] == document_of[at + 1] && learned[at + 1];
        ASSERT_EQ(row.tokens[i], tokens[at]);
        ASSERT_EQ(row.labels[i], has_label ? tokens[at + 1] : -100);
        ASSERT_EQ(row.documents[i], number);
        ASSERT_EQ(row.positions[i], position++);
      }
    }
  }
}

}  // namespace
}  // namespace stepc
