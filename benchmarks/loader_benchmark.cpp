// Times the data loader on one core: `loader_benchmark DIRECTORY [TOKENS]` writes shards of random tokens there (once)
// and prints a JSON line: tokens a second from shards to packed batches (tokens, labels, positions and document ids) of
// 8 x 2048, without and with a mask of learned tokens; and the seconds from nothing to the batch in the middle of the
// run, which is what a resume takes.
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "data/shard/mixture.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kShardTokens = uint64_t{1} << 24;
constexpr size_t kBatch = 8;
constexpr int64_t kSeq = 2048;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Documents of about 600 tokens.
std::vector<fs::path> make_shards(const fs::path& directory, uint64_t tokens, bool masked) {
  fs::create_directories(directory);
  std::vector<fs::path> paths;
  uint64_t state = 1;
  for (uint64_t done = 0; done < tokens; done += kShardTokens) {
    paths.push_back(directory / str("{}-{}.tokens", masked ? "masked" : "plain", paths.size()));
    if (fs::exists(paths.back())) continue;
    TokenizedDocuments documents;
    documents.tokens.resize(kShardTokens);
    for (auto& token : documents.tokens) {
      state = state * 6364136223846793005 + 1442695040888963407;
      token = static_cast<int32_t>(state >> 49);
    }
    for (uint64_t end = 0; end < kShardTokens;) {
      state = state * 6364136223846793005 + 1442695040888963407;
      documents.ends.push_back(end = std::min(kShardTokens, end + 1 + (state >> 33) % 1200));
    }
    if (masked)
      for (uint64_t i = 0; i < kShardTokens; ++i) documents.learned.push_back(i / 100 % 2 == 0);
    write_shard(paths.back(), documents, 32'768);
  }
  return paths;
}

Mixture open_mixture(const std::vector<fs::path>& paths) {
  auto stream = std::make_shared<const TokenStream>(paths);
  const uint64_t size = stream->size();
  return Mixture({{std::move(stream), 1, 0, size}}, kSeq, 1);
}

double tokens_per_second(const Mixture& mixture) {
  constexpr double kSeconds = 2;
  PackedBatch batch;
  const auto warm = mixture.windows(0);  // every page of the map once
  for (uint64_t sample = 0; sample + kBatch <= warm; sample += kBatch) mixture.fill(sample, kBatch, batch);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t samples = 0;
  for (; seconds_since(begin) < kSeconds; samples += kBatch) mixture.fill(samples, kBatch, batch);
  return static_cast<double>(samples * kSeq) / seconds_since(begin);
}

}  // namespace
}  // namespace stepc

int main(int argc, char** argv) {
  using namespace stepc;
  if (argc < 2) {
    std::fputs("usage: loader_benchmark DIRECTORY [TOKENS]\n", stderr);
    return 2;
  }
  try {
    const uint64_t tokens = argc > 2 ? std::stoull(argv[2]) : uint64_t{1} << 26;
    const auto plain = make_shards(argv[1], tokens, false);
    const auto masked = make_shards(argv[1], std::min<uint64_t>(tokens, kShardTokens), true);
    const auto begin = std::chrono::steady_clock::now();
    const Mixture mixture = open_mixture(plain);
    PackedBatch batch;
    mixture.fill(mixture.windows(0) / 2, kBatch, batch);
    const double resume = seconds_since(begin);
    const Json result = {{"tokens", plain.size() * kShardTokens},
                         {"resume_seconds", resume},
                         {"tokens_per_second", tokens_per_second(mixture)},
                         {"masked_tokens_per_second", tokens_per_second(open_mixture(masked))}};
    std::puts(result.dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loader_benchmark: %s\n", error.what());
    return 1;
  }
}
