#include "data/text_dataset.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

Tokenizer byte_tokenizer() { return Tokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t"); }

class TextDatasetTest : public ::testing::Test {
 protected:
  TextDatasetOptions options(const std::string& text, int64_t seq_len, double eval_fraction) {
    write_file_synced(dir_ / "a.txt", text);
    TextDatasetOptions options;
    options.files = {dir_ / "a.txt"};
    options.seq_len = seq_len;
    options.eval_fraction = eval_fraction;
    options.separator = "";
    return options;
  }
  static std::vector<int64_t> train_batch(const TextDataset& data, uint64_t seed, int64_t first, int64_t batch) {
    std::vector<int64_t> out(static_cast<size_t>(batch * (data.seq_len() + 1)));
    data.fill_train_batch(seed, first, batch, out);
    return out;
  }

  TempDir dir_;
  Tokenizer tokenizer_ = byte_tokenizer();
};

TEST_F(TextDatasetTest, WindowsShareOneToken) {
  const TextDataset data(tokenizer_, options("0123456789", 3, 0));
  EXPECT_EQ(data.train_windows(), 3);
  EXPECT_EQ(data.eval_windows(), 0);
  std::set<std::vector<int64_t>> windows;
  for (int64_t i = 0; i < 3; ++i) windows.insert(train_batch(data, 1, i, 1));
  EXPECT_EQ(windows,
            (std::set<std::vector<int64_t>>{{'0', '1', '2', '3'}, {'3', '4', '5', '6'}, {'6', '7', '8', '9'}}));
}

TEST_F(TextDatasetTest, TheEndIsHeldOut) {
  const TextDataset data(tokenizer_, options(std::string(80, 't') + std::string(20, 'e'), 4, 0.2));
  EXPECT_EQ(data.train_windows(), 19);
  EXPECT_EQ(data.eval_windows(), 4);
  const auto train = train_batch(data, 3, 0, 19);
  EXPECT_EQ(std::count(train.begin(), train.end(), 'e'), 0);
  std::vector<int64_t> eval(2 * 5);
  data.fill_eval_batch(2, 2, eval);
  EXPECT_EQ(std::count(eval.begin(), eval.end(), 'e'), 10);
}

TEST_F(TextDatasetTest, BatchesDoNotDependOnHowTheyAreAskedFor) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7 % 251);
  const TextDataset data(tokenizer_, options(text, 8, 0.1));
  const auto whole = train_batch(data, 5, 0, 300);
  for (const int64_t first : {0, 3, 110, 112, 299}) {
    const auto part = train_batch(data, 5, first, 1);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * 9)) << first;
  }
  EXPECT_NE(train_batch(data, 6, 0, 300), whole);
}

TEST_F(TextDatasetTest, FilesAreSeparated) {
  TextDatasetOptions two = options("ab", 1, 0);
  write_file_synced(dir_ / "b.txt", "cd");
  two.files.push_back(dir_ / "b.txt");
  two.separator = "<|endoftext|>";
  const TextDataset data(tokenizer_, two);
  EXPECT_EQ(data.total_tokens(), 6);
  EXPECT_EQ(data.text_bytes(), 4U);
}

TEST_F(TextDatasetTest, HashSeesTextSplitAndLength) {
  const uint64_t base = TextDataset(tokenizer_, options("0123456789", 2, 0.3)).hash();
  EXPECT_EQ(TextDataset(tokenizer_, options("0123456789", 2, 0.3)).hash(), base);
  EXPECT_NE(TextDataset(tokenizer_, options("0123456780", 2, 0.3)).hash(), base);
  EXPECT_NE(TextDataset(tokenizer_, options("0123456789", 1, 0.3)).hash(), base);
  EXPECT_NE(TextDataset(tokenizer_, options("0123456789", 2, 0.4)).hash(), base);
}

TEST_F(TextDatasetTest, ReportsProgressOverAllFiles) {
  TextDatasetOptions two = options(std::string(1 << 20, 'a'), 16, 0);
  two.files.push_back(two.files[0]);
  std::vector<uint64_t> seen;
  two.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 2U << 20);
    seen.push_back(done);
  };
  const TextDataset data(tokenizer_, two);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 2U << 20);
}

TEST_F(TextDatasetTest, SaysWhatIsMissing) {
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("abc", 3, 0)),
                    "the training text has 3 tokens, one sequence of length 3 needs 4");
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("0123456789", 3, 0.2)), "the held-out text has 2 tokens");
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("", 3, 0)), "a.txt is empty");
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("abc", 0, 0)),
                    "the sequence length must be from 1 to 1073741824, found 0");
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("abc", INT64_MAX, 0)), "found 9223372036854775807");
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("abc", 1, 0.6)), "from 0 to 0.5, found 0.6");
  EXPECT_USER_ERROR(TextDataset(tokenizer_, options("abc", 1, NAN)), "from 0 to 0.5, found nan");
  TextDatasetOptions none = options("abc", 1, 0);
  none.files = {};
  EXPECT_USER_ERROR(TextDataset(tokenizer_, none), "no text files");
  none.files = {dir_ / "none.txt"};
  EXPECT_USER_ERROR(TextDataset(tokenizer_, none), "none.txt: No such file or directory");
  none.files = {dir_.path()};
  EXPECT_USER_ERROR(TextDataset(tokenizer_, none), "not a regular file");
}

}  // namespace
}  // namespace stepc
