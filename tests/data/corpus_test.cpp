#include "data/corpus.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/source/find_files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "answer"}]})";

class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest() {
    options_.cache.directory = dir_ / "cache";
    options_.cache.separator = "";
  }
  fs::path write(const std::string& name, const std::string& text) {
    write_file_synced(dir_ / name, text);
    return dir_ / name;
  }
  Corpus corpus(const std::vector<fs::path>& files, int64_t seq_len, double fraction) {
    options_.sources = {{files, 1}};
    options_.seq_len = seq_len;
    options_.held_out_fraction = fraction;
    return {tokenizer_, options_};
  }
  static std::string held_out(const Corpus& corpus, uint64_t window, size_t seq) {
    PackedBatch batch;
    batch.resize(1, seq);
    corpus.fill_held_out(window, batch.row(0, seq));
    std::string text;
    for (const int64_t token : batch.tokens) text += static_cast<char>(token);
    return text;
  }

  TempDir dir_;
  Tokenizer tokenizer_ = Tokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t");
  CorpusOptions options_;
};

TEST_F(CorpusTest, TheEndIsHeldOut) {
  const Corpus made = corpus({write("a.txt", std::string(80, 't') + "0123456789abcdefghij")}, 4, 0.2);
  EXPECT_EQ(made.train_windows(), 19U);
  EXPECT_EQ(made.held_out_windows(), 4U);
  EXPECT_FALSE(made.packs_documents());
  EXPECT_EQ(held_out(made, 0, 4), "0123");
  EXPECT_EQ(held_out(made, 3, 4), "cdef");
  PackedBatch batch;
  made.mixture().fill(0, 19, batch);
  EXPECT_EQ(std::ranges::count(batch.tokens, 't'), 19 * 4);
}

TEST_F(CorpusTest, EverySourceHoldsItsOwnEndOut) {
  options_.sources = {{{write("a.txt", std::string(40, 'a'))}, 3}, {{write("b.txt", std::string(40, 'b'))}, 1}};
  options_.seq_len = 3;
  options_.held_out_fraction = 0.25;
  const Corpus made(tokenizer_, options_);
  EXPECT_EQ(made.held_out_windows(), 6U);
  EXPECT_EQ(held_out(made, 2, 3), "aaa");
  EXPECT_EQ(held_out(made, 3, 3), "bbb");
  PackedBatch batch;
  made.mixture().fill(0, Mixture::kBlock, batch);
  EXPECT_EQ(std::ranges::count(batch.tokens, 'b'), 3 * Mixture::kBlock / 4);
}

TEST_F(CorpusTest, FilesOfTheirOwnCanBeHeldOut) {
  options_.held_out = {write("e.txt", "0123456789")};
  const Corpus made = corpus({write("a.txt", std::string(9, 't'))}, 4, 0.5);
  EXPECT_EQ(made.train_windows(), 2U) << "nothing is taken from the training text";
  EXPECT_EQ(held_out(made, 1, 4), "4567");
  EXPECT_EQ(made.files(), 2U);
}

TEST_F(CorpusTest, WithBucketsARowIsADocument) {
  options_.buckets = {4, 8};
  const std::string lines = R"({"text": "abc"})"
                            "\n"
                            R"({"text": "x"})"
                            "\n"
                            R"({"text": "abcdefg"})"
                            "\n";
  options_.held_out = {write("e.jsonl", R"({"text": "held"})")};
  const Corpus made = corpus({write("a.jsonl", lines)}, 4, 0);
  EXPECT_EQ(made.train_windows(), 2U) << "one token has nothing to predict";
  EXPECT_FALSE(made.packs_documents()) << "rows of one document need no mask";
  EXPECT_EQ(made.mixture().mean_tokens(), 4);  // "ab", and "abcdef"
  std::set<int64_t> lengths;
  for (uint64_t sample = 0; sample < 2; ++sample) {
    PackedBatch batch;
    made.mixture().fill(sample, 1, batch);
    const int64_t seq = made.mixture().length_of(sample, 1);
    lengths.insert(seq);
    ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(seq));
    const size_t filled = seq == 4 ? 2 : 6;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      EXPECT_EQ(batch.tokens[i], i < filled ? static_cast<int64_t>('a' + i) : 0);
      EXPECT_EQ(batch.labels[i], i < filled ? static_cast<int64_t>('b' + i) : PackedRow::kNoLabel);
    }
  }
  EXPECT_EQ(lengths, (std::set<int64_t>{4, 8}));
  EXPECT_EQ(made.mixture().length_of(0, 2), 8) << "of the longest row";
  EXPECT_EQ(made.held_out_length(0), 3U);
  EXPECT_EQ(held_out(made, 0, 4), std::string("hel\0", 4));
  PackedBatch cut;
  made.mixture().fill(0, 2, 1, cut);
  EXPECT_EQ(cut.tokens, (std::vector<int64_t>{'a', 'a'}));
}

TEST_F(CorpusTest, DocumentsAboveTheLargestBucketAreRefused) {
  options_.buckets = {2, 5};
  const auto six = write("a.jsonl", R"({"text": "abcdefg"})"), three = write("b.jsonl", R"({"text": "abcd"})");
  EXPECT_USER_ERROR(corpus({six}, 4, 0), "a document makes a row of 6 tokens, and the largest of data.buckets is 5: ");
  options_.held_out = {six};
  EXPECT_USER_ERROR(corpus({three}, 4, 0), "a document makes a row of 6 tokens");
  options_.held_out.clear();
  EXPECT_USER_ERROR(corpus({three}, 4, 0.5), "the held-out text of 2 tokens has no whole document: hold out more");
  EXPECT_USER_ERROR(corpus({write("c.jsonl", R"({"text": "a"})")}, 4, 0), "no document of at least two tokens");
}

TEST_F(CorpusTest, TextsAndChatsCanBeMixed) {
  options_.format.chat = [] { return std::make_shared<ChatTemplate>(ChatTemplate::named("zephyr")); };
  const auto text = write("a.jsonl", R"({"text": "hello"})");
  const auto chats = write("b.jsonl", std::string("\n") + kChat + "\n" + kChat);
  const Corpus made = corpus({text, chats, write("c.txt", "end")}, 50, 0);
  EXPECT_EQ(made.documents(), 4U);
  EXPECT_TRUE(made.packs_documents());
  PackedBatch batch;
  made.mixture().fill(0, 1, batch);
  std::string learned;
  for (const int64_t label : batch.labels)
    if (label >= 0) learned += static_cast<char>(label);
  // Of a document, its first token is nothing's label; of a chat, the assistant's turn is learned.
  EXPECT_EQ(learned.substr(0, 4 + 12), "elloanswer</s>\n");
}

TEST_F(CorpusTest, ChatsWithoutAnAnswerHaveNoLabels) {
  options_.format.chat = [] { return std::make_shared<const ChatTemplate>(ChatTemplate::named("chatml")); };
  const std::string question = R"({"messages": [{"role": "user", "content": "a question"}]})";
  EXPECT_FALSE(corpus({write("asked.jsonl", question + "\n" + question)}, 8, 0).has_labels(0));
  EXPECT_TRUE(corpus({write("answered.jsonl", question + "\n" + kChat)}, 8, 0).has_labels(0));
}

TEST_F(CorpusTest, ChatsWithoutATemplateAreRefused) {
  EXPECT_USER_ERROR(corpus({write("b.jsonl", kChat)}, 4, 0), "b.jsonl: its lines are chats");
}

TEST_F(CorpusTest, ReportsProgressOverAllFiles) {
  std::vector<uint64_t> seen;
  uint64_t total = 0;
  options_.cache.progress = [&](uint64_t done, uint64_t all) {
    seen.push_back(done);
    total = all;
  };
  corpus({write("a.txt", std::string(1000, 'a')), write("b.jsonl", R"({"text": "x"})"), write("c.txt", "last")}, 4, 0);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(total, 1017U);
  EXPECT_EQ(seen.back(), total);
}

TEST_F(CorpusTest, SaysWhatIsMissing) {
  EXPECT_USER_ERROR(corpus({write("a.txt", "abc")}, 3, 0),
                    "data source 1 has 3 tokens, one sequence of length 3 needs 4");
  EXPECT_USER_ERROR(corpus({write("a.txt", "0123456789")}, 3, 0.2), "the held-out text has 2 tokens");
  EXPECT_USER_ERROR(corpus({write("a.txt", "")}, 3, 0), "a.txt is empty");
  EXPECT_USER_ERROR(corpus({write("a.txt", "abc")}, 0, 0), "the sequence length must be from 1 to 1073741824, found 0");
  EXPECT_USER_ERROR(corpus({write("a.txt", "abc")}, 1, NAN), "from 0 to 0.5, found nan");
  EXPECT_USER_ERROR(corpus({dir_ / "none.txt"}, 1, 0), "none.txt: No such file or directory");
}

TEST_F(CorpusTest, ADamagedShardIsMadeAgain) {
  const auto file = write("a.txt", "0123456789");
  corpus({file}, 3, 0);
  for (const auto& entry : fs::directory_iterator(dir_ / "cache"))
    if (entry.path().extension() == ".tokens") fs::resize_file(entry.path(), 70);
  EXPECT_EQ(corpus({file}, 3, 0).tokens(), 10U);
}

TEST(FindFiles, DirectoriesAndPatterns) {
  const TempDir dir;
  for (const char* name : {"b.txt", "a.jsonl", "c.md", "d.parquet", "part-1.txt"}) write_file_synced(dir / name, "x");
  fs::create_directory(dir / "empty");
  const auto all = find_files(dir.path().string());
  EXPECT_EQ(all, (std::vector<fs::path>{dir / "a.jsonl", dir / "b.txt", dir / "d.parquet", dir / "part-1.txt"}));
  EXPECT_EQ(find_files((dir / "part-*.txt").string()), std::vector<fs::path>{dir / "part-1.txt"});
  EXPECT_EQ(find_files((dir / "c.md").string()), std::vector<fs::path>{dir / "c.md"});
  EXPECT_USER_ERROR(find_files((dir / "none.txt").string()), "none.txt: No such file or directory");
  EXPECT_USER_ERROR(find_files((dir / "x*").string()), "no file has such a name");
  EXPECT_USER_ERROR(find_files((dir / "empty").string()), "no .txt, .jsonl or .parquet file");
}

}  // namespace
}  // namespace stepc
