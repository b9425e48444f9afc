#include "data/inspect/shown_row.h"

#include <gtest/gtest.h>

namespace stepc {
namespace {

class ShownRow : public ::testing::Test {
 protected:
  // Two documents, of the first only the 'b' and the last byte are learned.
  std::string shown(const ShownRowOptions& options) {
    return shown_row(tokenizer_, {tokens_, labels_, positions_, documents_}, options);
  }
  Tokenizer tokenizer_ = Tokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t");
  std::vector<int64_t> tokens_ = {'a', 'b', '\n', 0x1B, 0xC3, 0xA9, '['};
  std::vector<int64_t> labels_ = {'b', -100, -100, -100, 0xA9, '[', -100};
  std::vector<int64_t> positions_ = {0, 1, 2, 3, 0, 1, 2};
  std::vector<int64_t> documents_ = {0, 0, 0, 0, 1, 1, 1};
};

TEST_F(ShownRow, PlainHasALineForEachRun) {
  EXPECT_EQ(shown({false, false}),
            "document 0, 1 not learned: a\ndocument 0, 1 learned: b\ndocument 0, 2 not learned: \u23CE\u241B\n"
            "document 1, 1 not learned: \uFFFD\ndocument 1, 2 learned: \uFFFD[\n");
}

TEST_F(ShownRow, ColoursByDocumentAndDimsWhatIsNotLearned) {
  labels_[3] = 0xC3;
  EXPECT_EQ(shown({true, false}),
            "\x1b[2;36ma\x1b[0m\x1b[36mb\x1b[0m\x1b[2;36m\u23CE\n\u241B\x1b[0m\x1b[33m\u00E9[\x1b[0m\n");
  EXPECT_EQ(shown({true, true}),
            "\x1b[2;36ma|\x1b[0m\x1b[36mb|\x1b[0m\x1b[2;36m\u23CE\n|\u241B|\x1b[0m\x1b[33m\u00E9|[|\x1b[0m\n");
}

TEST_F(ShownRow, CountsTheLabels) { EXPECT_EQ(learned_tokens({tokens_, labels_, positions_, documents_}), 3U); }

}  // namespace
}  // namespace stepc
