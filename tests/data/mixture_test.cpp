#include "data/shard/mixture.h"

#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "base/files.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

class MixtureTest : public ::testing::Test {
 protected:
  // Tokens base, base + 1, ... below 60,000, one document.
  std::shared_ptr<const TokenStream> stream(int32_t base, size_t count) {
    TokenizedDocuments made;
    for (size_t i = 0; i < count; ++i) made.tokens.push_back(base + static_cast<int32_t>(i % 10'000));
    made.ends = {count};
    const auto path = dir_ / std::to_string(base);
    write_shard(path, made, 60'000);
    return std::make_shared<TokenStream>(std::vector{path});
  }
  static MixtureSource whole(std::shared_ptr<const TokenStream> stream, double weight) {
    const uint64_t size = stream->size();
    return {std::move(stream), weight, 0, size};
  }
  Mixture two(uint64_t seed = 7) {
    return Mixture({whole(stream(0, 1001), 3), whole(stream(20'000, 501), 1)}, 10, seed);
  }

  TempDir dir_;
};

TEST_F(MixtureTest, BlocksHaveTheWeights) {
  const Mixture mixture = two();
  for (uint64_t block = 0; block < 3; ++block) {
    std::map<size_t, uint64_t> counts;
    for (uint64_t i = 0; i < Mixture::kBlock; ++i) ++counts[mixture.place_of(block * Mixture::kBlock + i).source];
    EXPECT_EQ(counts[0], 3072U);
    EXPECT_EQ(counts[1], 1024U);
  }
  EXPECT_NEAR(mixture.epochs(0, 1000), 7.5, 1e-9);
  EXPECT_NEAR(mixture.epochs(1, 1000), 5, 1e-9);
}

TEST_F(MixtureTest, EverySourceIsSeenEvenly) {
  const Mixture mixture = two();
  std::map<size_t, std::map<uint64_t, int>> seen;
  for (uint64_t i = 0; i < 2 * Mixture::kBlock; ++i) {
    const auto place = mixture.place_of(i);
    ++seen[place.source][place.window];
  }
  for (const auto& [source, windows] : seen) {
    EXPECT_EQ(windows.size(), source == 0 ? 100U : 50U);
    int least = INT32_MAX;
    int most = 0;
    for (const auto& [window, count] : windows) {
      least = std::min(least, count);
      most = std::max(most, count);
    }
    EXPECT_LE(most - least, 1) << source;
  }
}

// One rank with a batch of 24, or 2, 3, 4 ranks with their parts of it; one step after another, or any step alone.
TEST_F(MixtureTest, BatchesDoNotDependOnRanksOrHistory) {
  const Mixture mixture = two();
  PackedBatch whole;
  PackedBatch part;
  for (const uint64_t step : {0, 1, 170, 171, 100'000}) {
    mixture.fill(step * 24, 24, whole);
    for (const uint64_t ranks : {2, 3, 4})
      for (uint64_t rank = 0; rank < ranks; ++rank) {
        const size_t rows = 24 / ranks;
        mixture.fill(step * 24 + rank * rows, rows, part);
        EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(),
                               whole.tokens.begin() + static_cast<ptrdiff_t>(rank * rows * 10)));
      }
  }
  PackedBatch other;
  mixture.fill(0, 24, whole);
  two(8).fill(0, 24, other);
  EXPECT_NE(whole.tokens, other.tokens);
  EXPECT_EQ(mixture.hash(), two().hash());
  EXPECT_NE(mixture.hash(), two(8).hash());
}

// What a resumed run relies on: it must never change.
TEST_F(MixtureTest, TheOrderIsFixedForever) {
  const Mixture mixture = two();
  std::vector<std::pair<size_t, uint64_t>> places;
  for (const uint64_t sample : {0, 1, 2, 3, 4096, 1'000'000}) {
    const auto place = mixture.place_of(sample);
    places.emplace_back(place.source, place.window);
  }
  EXPECT_EQ(places, (std::vector<std::pair<size_t, uint64_t>>{{0, 86}, {0, 44}, {0, 47}, {0, 4}, {0, 89}, {1, 24}}));
}

TEST_F(MixtureTest, UsesItsPartOfASourceOnly) {
  const auto all = stream(0, 1001);
  const Mixture mixture({{all, 1, 500, 201}}, 10, 1);
  EXPECT_EQ(mixture.windows(0), 20U);
  PackedBatch batch;
  mixture.fill(0, 20, batch);
  const std::set<int64_t> tokens(batch.tokens.begin(), batch.tokens.end());
  EXPECT_EQ(tokens.size(), 200U);
  EXPECT_EQ(*tokens.begin(), 500);
}

TEST_F(MixtureTest, SaysWhatIsWrong) {
  const auto all = stream(0, 10);
  EXPECT_USER_ERROR(Mixture({}, 10, 1), "no data source");
  EXPECT_USER_ERROR(Mixture({whole(all, 1)}, 10, 1), "data source 1 has 10 tokens, one sequence of length 10 needs 11");
  EXPECT_USER_ERROR(Mixture({whole(all, 1)}, 0, 1), "from 1 to 1073741824, found 0");
  EXPECT_USER_ERROR(Mixture({whole(all, 0)}, 2, 1), "must be a positive number, found 0");
  EXPECT_USER_ERROR(Mixture({whole(all, NAN)}, 2, 1), "found nan");
}

TEST_F(MixtureTest, SmallWeightsAreSeenToo) {
  const auto all = stream(0, 1000);
  const Mixture mixture({whole(all, 1e9), whole(all, 1), whole(all, 1e-30)}, 10, 1);
  std::map<size_t, int> counts;
  for (uint64_t i = 0; i < Mixture::kBlock; ++i) ++counts[mixture.place_of(i).source];
  EXPECT_EQ(counts[0], 4094);
  EXPECT_EQ(counts[1], 1);
  EXPECT_EQ(counts[2], 1);
}

}  // namespace
}  // namespace stepc
