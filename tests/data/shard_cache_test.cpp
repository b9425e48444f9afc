#include "data/shard/shard_cache.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "data/shard/token_stream.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

class ShardCacheTest : public ::testing::Test {
 protected:
  ShardCacheTest() : tokenizer_(parse_tokenizer_json(make_byte_tokenizer_json(), "t"), "t") {
    options_.directory = dir_ / "cache";
  }
  fs::path write(const std::string& name, const std::string& text) {
    write_file_synced(dir_ / name, text);
    return dir_ / name;
  }
  ShardCacheResult run(const std::vector<fs::path>& files) { return tokenize_files(tokenizer_, files, options_); }
  // All tokens, 256 as '|'.
  static std::string text_of(const ShardCacheResult& result) {
    const TokenStream stream(result.shards);
    std::vector<int64_t> tokens(stream.size());
    stream.copy(0, tokens);
    std::string text;
    for (const int64_t token : tokens) text += token == 256 ? '|' : static_cast<char>(token);
    return text;
  }
  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += R"({"text": "line )" + std::to_string(i) + "\"}\n";
    return text;
  }

  TempDir dir_;
  Tokenizer tokenizer_;
  ShardCacheOptions options_;
};

TEST_F(ShardCacheTest, TextAndLinesBecomeDocuments) {
  const auto result =
      run({write("a.txt", "one\ntwo"), write("b.jsonl", "{\"text\": \"x\\u00e9\"}\n\n{\"id\": 3, \"text\": \"y\"}")});
  EXPECT_EQ(text_of(result), "one\ntwo|x\xC3\xA9|y|");
  EXPECT_EQ(TokenStream(result.shards).documents(), 3U);
}

TEST_F(ShardCacheTest, NumbersBesideTheTextMayBeOfAnySize) {
  const std::string digits(400, '9');
  const auto result =
      run({write("n.jsonl", "{\"a\": -1e999, \"text\": \"\\\"1e999\", \"b\": [1E+400, {\"c\": " + digits +
                                ", \"d\": 2.5e-999}]}\n{\"text\": \"y\"}")});
  EXPECT_EQ(text_of(result), "\"1e999|y|");
  options_.format = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("zephyr"))};
  const auto chat = run({write(
      "c.jsonl",
      R"({"id": 1e999, "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})")});
  EXPECT_EQ(text_of(chat), "<|user|>\nq</s>\n<|assistant|>\na</s>\n");
}

TEST_F(ShardCacheTest, ChatsAreLearnedFromTheAssistant) {
  options_.format = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("zephyr"))};
  const auto result = run(
      {write("c.jsonl", R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})")});
  const TokenShard shard(result.shards.at(0));
  std::string learned;
  std::vector<int64_t> tokens(shard.size());
  shard.copy(0, tokens);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (shard.learned(i)) learned += static_cast<char>(tokens[i]);
  EXPECT_EQ(text_of(result), "<|user|>\nq</s>\n<|assistant|>\na</s>\n");
  EXPECT_EQ(learned, "a</s>\n");
}

TEST_F(ShardCacheTest, ThreadsAndChunksDoNotChangeTheTokens) {
  const auto file = write("a.jsonl", lines(300));
  const auto expected = text_of(run({file}));
  for (const int threads : {1, 4})
    for (const uint64_t chunk : {400, 3000, 1'000'000}) {
      options_.directory = dir_ / ("cache" + std::to_string(threads) + "-" + std::to_string(chunk));
      options_.threads = threads;
      options_.chunk_bytes = chunk;
      EXPECT_EQ(text_of(run({file})), expected) << threads << " " << chunk;
    }
}

TEST_F(ShardCacheTest, TheSameTextIsTokenisedOnceAndAChangedOneAgain) {
  options_.chunk_bytes = 1000;
  const auto file = write("a.jsonl", lines(200));
  const auto first = run({file});
  EXPECT_GT(first.made, 3U);
  EXPECT_EQ(run({file}).made, 0U);
  const auto copy = write("copy.jsonl", lines(200));
  EXPECT_EQ(run({copy}).made, 0U) << "named by content";
  std::string changed = lines(200);
  changed[changed.size() - 10] = 'X';
  write("a.jsonl", changed);
  const auto second = run({file});
  EXPECT_EQ(second.made, 1U) << "the last chunk alone";
  EXPECT_NE(text_of(second), text_of(first));
  options_.separator = "";
  EXPECT_EQ(run({file}).made, first.made) << "another format";
}

// Python's json writes halves of surrogate pairs, and a crawl has some.
TEST_F(ShardCacheTest, HalvesOfSurrogatePairsAreReplacedAndCounted) {
  std::vector<uint64_t> told;
  options_.faults = [&](const TextFaults& faults) { told.push_back(faults.repaired); };
  const std::string good = R"({"text": "\\ud800 \ud83d\ude42 \\"})";
  const std::string mark = "\xEF\xBF\xBD";
  const std::string good_text = "\\ud800 \xF0\x9F\x99\x82 \\|";
  EXPECT_EQ(text_of(run({write("good.jsonl", good)})), good_text);
  EXPECT_TRUE(told.empty());
  const std::string bad = R"({"text": "\ud83d \ude42\ude42"})"
                          "\n"
                          R"({"\uDBFF": 1, "text": "\ud83d\ud83d\ude42\uD83D"})"
                          "\n";
  EXPECT_EQ(text_of(run({write("bad.jsonl", bad + good)})),
            mark + " " + mark + mark + "|" + mark + "\xF0\x9F\x99\x82" + mark + "|" + good_text);
  EXPECT_EQ(told, std::vector<uint64_t>{2});
}

TEST_F(ShardCacheTest, UnusableLinesAreNamedOrLeftOutAndCounted) {
  options_.format.chat = std::make_shared<ChatTemplate>(ChatTemplate::named("chatml"));
  options_.format.field = "messages";
  options_.chunk_bytes = 100;
  const std::string good = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const std::string first = R"({"messages": [{"role": "assistant", "content": "first"}]})";
  std::string text;
  for (const std::string& line : {good, good, first, good, std::string("no JSON"), good}) text += line + "\n";
  const auto file = write("chats.jsonl", text);
  EXPECT_USER_ERROR(run({file}), "chats.jsonl:3: chat template chatml: the assistant speaks first");
  EXPECT_THROW(run({file}), UnusableDocument);

  TextFaults told;
  options_.faults = [&](const TextFaults& faults) { told = faults; };
  options_.format.skips_unusable = true;
  const auto all = run({file});
  EXPECT_EQ(told.skipped, 2U);
  EXPECT_NE(told.first_skipped.find("chats.jsonl:3: chat template chatml"), std::string::npos) << told.first_skipped;
  options_.format.skips_unusable = false;
  EXPECT_EQ(text_of(all), text_of(run({write("good.jsonl", good + "\n" + good + "\n" + good + "\n" + good)})));
}

// The resident memory of this process at its highest, in bytes.
uint64_t peak_memory() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

TEST_F(ShardCacheTest, ALargeTextTakesLittleMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what was freed";
#endif
  constexpr uint64_t kBytes = uint64_t{64} << 20;
  std::string block;
  while (block.size() < uint64_t{1} << 20) block += "some words of a text that goes on.\nAnd on,";
  const fs::path file = dir_ / "large.txt";
  {
    FileWriter writer(file);
    for (uint64_t bytes = 0; bytes < kBytes; bytes += block.size()) writer.write(block);
    writer.commit();
  }
  const uint64_t before = peak_memory();
  const auto result = run({file});
  EXPECT_EQ(TokenStream(result.shards).size(), fs::file_size(file) + 1);
  options_.verify = true;
  EXPECT_EQ(run({file}).made, 0U);
  EXPECT_LT(peak_memory() - before, uint64_t{32} << 20) << "of a text of 64 MiB and tokens of 128 MiB";
}

TEST_F(ShardCacheTest, AFileThatDidNotChangeIsNotRead) {
  const auto file = write("a.txt", "some text");
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  run({file});
  EXPECT_TRUE(fs::directory_iterator(options_.directory) != fs::directory_iterator());
  fs::last_write_time(file, old);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // its inode was changed just now
  run({file});
  const auto has_set = [&] {
    return std::any_of(fs::directory_iterator(options_.directory), fs::directory_iterator(),
                       [](const auto& entry) { return entry.path().extension() == ".set"; });
  };
  EXPECT_TRUE(has_set());
  EXPECT_EQ(run({file}).made, 0U);
  for (const auto& entry : fs::directory_iterator(options_.directory))
    if (entry.path().extension() == ".tokens") fs::remove(entry.path());
  EXPECT_EQ(run({file}).made, 1U) << "a set whose shard is gone is not known";
}

TEST_F(ShardCacheTest, GoesOnWhereItWasInterrupted) {
  options_.chunk_bytes = 1000;
  const auto file = dir_ / "a.jsonl";
  std::string bad = lines(2000);
  bad[bad.size() - 3] = '\\';
  write("a.jsonl", bad);
  EXPECT_USER_ERROR(run({file}), "a.jsonl:2000: not valid JSON");
  write("a.jsonl", lines(2000));
  const std::string shard = "0123456789abcdef.tokens.tmp-1", set = "0123456789abcdef.set.tmp-17";
  for (const auto& name : {shard, set}) std::ofstream(options_.directory / name) << "left by a dead process";
  const auto result = run({file});
  EXPECT_EQ(result.made, 1U);
  for (const auto& name : {shard, set}) EXPECT_FALSE(fs::exists(options_.directory / name)) << name;
}

TEST_F(ShardCacheTest, LeavesAloneWhatItDidNotMake) {
  const std::vector<std::string> theirs = {"notes.tmp-1",
                                           "x.tokens.tmp-1",
                                           "0123456789abcdef.tmp-1",
                                           "0123456789abcdef.tokens.tmp-",
                                           "0123456789abcdef.tokens.tmp-1.bak",
                                           "0123456789ABCDEF.tokens.tmp-1",
                                           "a0123456789abcdef.set.tmp-1"};
  const fs::path directory = options_.directory / "0123456789abcdef.tokens.tmp-2";
  const fs::path link = options_.directory / "0123456789abcdef.tokens.tmp-3";
  fs::create_directories(directory);
  std::ofstream(directory / "thesis") << "theirs";
  fs::create_symlink(directory / "thesis", link);
  for (const auto& name : theirs) std::ofstream(options_.directory / name) << "theirs";
  run({write("a.txt", "some text")});
  for (const auto& name : theirs) EXPECT_TRUE(fs::exists(options_.directory / name)) << name;
  EXPECT_TRUE(fs::exists(directory / "thesis"));
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST_F(ShardCacheTest, ADamagedShardIsMadeAgain) {
  const auto file = write("a.txt", "some text that is long enough");
  const auto shard = run({file}).shards.at(0);
  const std::string good = read_text(shard, 1 << 20);
  write_file_synced(shard, good.substr(0, 70));
  EXPECT_EQ(run({file}).made, 1U);
  std::string other_token = good;
  other_token[66] = 'X';
  write_file_synced(shard, other_token);
  EXPECT_EQ(run({file}).made, 0U) << "not noticed without reading it";
  options_.verify = true;
  EXPECT_EQ(run({file}).made, 1U);
  EXPECT_EQ(read_text(shard, 1 << 20), good);
}

TEST_F(ShardCacheTest, AThrowingProgressEndsTheWork) {
  struct Stop {};
  const auto file = write("a.jsonl", lines(100'000));
  options_.chunk_bytes = 200'000;
  options_.progress = [](uint64_t, uint64_t) { throw Stop(); };
  EXPECT_THROW(run({file}), Stop);
  options_.progress = {};
  EXPECT_EQ(TokenStream(run({file}).shards).documents(), 100'000U);
}

TEST_F(ShardCacheTest, TwoProcessesDoTheWorkOnce) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child of fork()";
#endif
  options_.chunk_bytes = 20'000;
  const auto file = write("a.jsonl", lines(30'000));
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      size_t made = 0;
      try {
        made = run({file}).made;
      } catch (...) {
        ::_exit(255);
      }
      ::_exit(made == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  std::sort(codes.begin(), codes.end());
  EXPECT_EQ(codes, (std::vector<int>{0, 1}));
}

TEST_F(ShardCacheTest, ReportsProgress) {
  const auto file = write("a.jsonl", lines(1000));
  std::vector<uint64_t> seen;
  options_.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, fs::file_size(file));
    seen.push_back(done);
  };
  run({file});
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), fs::file_size(file));
}

TEST_F(ShardCacheTest, SaysWhatIsWrongAndWhere) {
  const auto said = [&](const std::string& text, const std::string& message) {
    EXPECT_USER_ERROR(run({write("bad.jsonl", text)}), message);
  };
  said("{\"text\": \"a\", \"n\": 1e999x}", "bad.jsonl:1: not valid JSON");
  said("{\"text\": \"a\"}\n[1]\n", "bad.jsonl:2: expected an object, found a list");
  said("{\"text\": 3}", "bad.jsonl:1: \"text\" must be text, found 3");
  said("\n\n{\"other\": \"a\"}", "bad.jsonl:3: \"text\" is missing");
  said("{\"text\": \"\xFF\"}", "bad.jsonl:1: not valid JSON");
  said("{\"text\": \"\\ud80\"}", "bad.jsonl:1: not valid JSON");
  EXPECT_USER_ERROR(run({write("empty.txt", "")}), "empty.txt is empty");
  EXPECT_USER_ERROR(run({dir_ / "none.txt"}), "none.txt: No such file");
  EXPECT_USER_ERROR(run({dir_ / "a.arrow"}), "Arrow files are not read; convert it to .parquet or .jsonl");
  EXPECT_USER_ERROR(run({write("a.parquet", "no Parquet")}), "Parquet: ");  // it is none, or the build reads none
  EXPECT_USER_ERROR(run({dir_ / "a.txt.gz"}), "unpack it first");
  options_.format = {"messages", std::make_shared<ChatTemplate>(ChatTemplate::named("mistral"))};
  said(R"({"messages": []})", "bad.jsonl:1: the messages must be a list of at least one");
  said(R"({"messages": [{"role": "user"}]})", "bad.jsonl:1: message 1: \"content\" is missing");
  said(R"({"messages": [{"role": "tool", "content": ""}]})",
       "bad.jsonl:1: chat template mistral: line 1: the template refuses");
  EXPECT_USER_ERROR(run({write("chat.txt", "x")}), "chat messages are read from .jsonl and .parquet files only");
}

}  // namespace
}  // namespace stepc
