// Times what a run waits for its data, on one core, over a token cache as a run leaves it; prints a JSON line:
//
//   resume_seconds             from opening the corpus to the batch in the middle of the run
//   cold_resume_seconds        the same after the shards were dropped from the page cache
//   tokens_per_second          from shards to packed batches of 8 x 2048: tokens, labels, positions, document ids
//   masked_tokens_per_second   the same with a mask of learned tokens
//
// The shards hold random tokens. They are written into a directory of their own under the one given, else under the
// temporary one, two bytes a token, and removed at the end.
//   loader_benchmark [TOKENS [DIRECTORY]]
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kShardTokens = uint64_t{1} << 22;  // about what 16 MiB of English have
constexpr size_t kBatch = 8;
constexpr int64_t kSeq = 2048;

class Scratch {
 public:
  explicit Scratch(const fs::path& parent) : path_(parent / str("loader-benchmark-{}", ::getpid())) {
    make_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Documents of about 600 tokens.
void write_random_shard(const fs::path& path, uint64_t& state, bool masked) {
  const auto random = [&] { return (state = state * 6364136223846793005 + 1442695040888963407) >> 33; };
  TokenizedDocuments documents;
  documents.tokens.resize(kShardTokens);
  for (auto& token : documents.tokens) token = static_cast<int32_t>(random() >> 16);
  for (uint64_t end = 0; end < kShardTokens;)
    documents.ends.push_back(end = std::min(kShardTokens, end + 1 + random() % 1200));
  if (masked)
    for (uint64_t i = 0; i < kShardTokens; ++i) documents.learned.push_back(i / 100 % 2 == 0);
  write_shard(path, documents, 32'768);
}

// A text of one line a shard is tokenised, so that the cache knows its shards; then others are put in their places.
CorpusOptions make_cache(const Scratch& scratch, const Tokenizer& tokenizer, uint64_t tokens) {
  std::string lines;
  size_t line_bytes = 0;
  for (uint64_t shard = 0; shard * kShardTokens < tokens; ++shard) {
    const std::string line = str("{{\"text\": \"{:08}\"}}\n", shard);
    line_bytes = line.size();
    lines += line;
  }
  CorpusOptions options;
  options.sources = {{{scratch / "text.jsonl"}, 1}};
  options.held_out_fraction = 0.001;
  options.seq_len = kSeq;
  options.seed = 1;
  options.cache.directory = scratch / "cache";
  options.cache.chunk_bytes = line_bytes;
  write_file_synced(options.sources[0].files[0], lines);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // a file that just changed is not remembered
  uint64_t state = 1;
  for (const fs::path& shard : tokenize_files(tokenizer, options.sources[0].files, options.cache).shards)
    write_random_shard(shard, state, false);
  return options;
}

void drop_from_page_cache(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

double resume_seconds(const Tokenizer& tokenizer, const CorpusOptions& options) {
  const auto begin = Clock::now();
  const Corpus corpus(tokenizer, options);
  PackedBatch batch;
  corpus.mixture().fill(corpus.mixture().windows(0) / 2, kBatch, batch);
  return seconds_since(begin);
}

double tokens_per_second(const Mixture& mixture) {
  constexpr double kSeconds = 2;
  PackedBatch batch;
  const auto windows = mixture.windows(0);  // every page of the map once
  for (uint64_t sample = 0; sample + kBatch <= windows; sample += kBatch) mixture.fill(sample, kBatch, batch);
  const auto begin = Clock::now();
  uint64_t samples = 0;
  for (; seconds_since(begin) < kSeconds; samples += kBatch) mixture.fill(samples, kBatch, batch);
  return static_cast<double>(samples * kSeq) / seconds_since(begin);
}

double masked_tokens_per_second(const Scratch& scratch) {
  uint64_t state = 1;
  std::vector<fs::path> shards;
  for (int i = 0; i < 4; ++i) {
    shards.push_back(scratch / str("masked-{}.tokens", i));
    write_random_shard(shards.back(), state, true);
  }
  auto stream = std::make_shared<const TokenStream>(shards);
  const uint64_t size = stream->size();
  return tokens_per_second(Mixture({{std::move(stream), 1, 0, size}}, kSeq, 1));
}

void run(uint64_t tokens, const fs::path& directory) {
  const Scratch scratch(directory);
  const Tokenizer tokenizer(parse_tokenizer_json(make_byte_tokenizer_json(), "tokenizer"), "tokenizer");
  const CorpusOptions options = make_cache(scratch, tokenizer, tokens);
  drop_from_page_cache(options.cache.directory);
  const double cold = resume_seconds(tokenizer, options);
  const double warm = resume_seconds(tokenizer, options);
  const Corpus corpus(tokenizer, options);
  const Json result = {{"tokens", corpus.tokens()},
                       {"cold_resume_seconds", cold},
                       {"resume_seconds", warm},
                       {"tokens_per_second", tokens_per_second(corpus.mixture())},
                       {"masked_tokens_per_second", masked_tokens_per_second(scratch)}};
  std::puts(result.dump().c_str());
}

}  // namespace
}  // namespace stepc

int main(int argc, char** argv) {
  try {
    stepc::run(argc > 1 ? std::stoull(argv[1]) : 1'000'000'000,
               argc > 2 ? std::filesystem::path(argv[2]) : std::filesystem::temp_directory_path());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loader_benchmark: %s\n", error.what());
    return 1;
  }
}
