// What links reach, from made-up samples, and between ranks that are threads of this process.
#include "calibrate/measure_links.h"

#include <thread>

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/expect_user_error.h"

namespace stepc {
namespace {

std::vector<LinkSample> samples_of(double rate, double latency, double hops) {
  std::vector<LinkSample> samples;
  for (double bytes = 1024; bytes <= 64 * 1024 * 1024; bytes *= 4)
    samples.push_back({bytes, hops, hops * latency + bytes / rate});
  return samples;
}

TEST(MeasureLinks, FindsLatencyAndRate) {
  for (const double rate : {1e7, 1e9, 4e11})
    for (const double latency : {1e-6, 5e-4}) {
      const std::vector<LinkSample> samples = samples_of(rate, latency, 3);
      const Link link = fit_link({"machine", 4}, samples);
      EXPECT_NEAR(link.bytes_per_second / rate, 1, 1e-6);
      EXPECT_NEAR(link.latency_seconds / latency, 1, 1e-6);
      EXPECT_LT(error_of(link, samples), 1e-6);
      EXPECT_EQ(link.devices, 4);
    }
}

TEST(MeasureLinks, NoiseGivesNoImpossibleNumber) {
  std::vector<LinkSample> samples = samples_of(1e9, 0, 1);
  samples.front().seconds /= 2;  // faster than its bytes would be
  const Link link = fit_link({"machine", 2}, samples);
  EXPECT_GT(link.latency_seconds, 0);
  EXPECT_GT(link.bytes_per_second, 0);
  const Link flat = fit_link({"machine", 2}, {{1024, 1, 2e-3}, {4096, 1, 1e-3}});
  EXPECT_GT(flat.latency_seconds, 0);
  EXPECT_GT(flat.bytes_per_second, 0);
  EXPECT_USER_ERROR(fit_link({}, {{1024, 1, 1e-3}}), "a link is measured with at least two sizes");
}

TEST(MeasureLinks, EveryRankHasTheSameLevels) {
  std::vector<std::vector<MeasuredLink>> by_rank(4);
  std::vector<std::thread> threads;
  for (const auto& ranks : Ranks::threads(4))
    threads.emplace_back([&by_rank, ranks] { by_rank[static_cast<size_t>(ranks->rank())] = measure_links(*ranks, 2); });
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(by_rank[0].size(), 2U);
  EXPECT_EQ(by_rank[0][0].link.name, "machine");
  EXPECT_EQ(by_rank[0][0].link.devices, 2);
  EXPECT_EQ(by_rank[0][1].link.name, "network");
  EXPECT_EQ(by_rank[0][1].link.devices, 4);
  for (const std::vector<MeasuredLink>& one : by_rank)
    for (size_t l = 0; l < 2; ++l) {
      EXPECT_EQ(one[l].link, by_rank[0][l].link);
      EXPECT_EQ(one[l].samples.size(), 9U);
    }
  EXPECT_NE(to_text(by_rank[0][0]).find("machine: "), std::string::npos);
}

}  // namespace
}  // namespace stepc
