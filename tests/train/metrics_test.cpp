#include "train/report/metrics.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/temp_dir.h"

namespace stepc::train {
namespace {

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Metrics, AResumedRunHasNoStepTwice) {
  const TempDir directory;
  const std::string path = (directory / "metrics.jsonl").string();
  {
    Metrics metrics(path, -1);
    for (int step = 0; step <= 3; ++step) metrics.write({{"step", step}, {"loss", 0.5 * step}});
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 4, \"lo";  // the process died here
  {
    Metrics metrics(path, 2);
    metrics.write({{"step", 2}, {"loss", 9}});  // there already
    metrics.write({{"step", 3}, {"loss", 7}});
    EXPECT_EQ(metrics.find(1, "loss"), 0.5);
    EXPECT_EQ(metrics.find(3, "loss"), 7);
    EXPECT_FALSE(metrics.find(1, "lr").has_value());
  }
  std::ifstream file(path);
  std::vector<double> losses;
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    EXPECT_EQ(line.at("step"), losses.size());
    EXPECT_GT(line.at("time").get<double>(), 1e9);
    losses.push_back(line.at("loss"));
  }
  EXPECT_EQ(losses, (std::vector{0.0, 0.5, 1.0, 7.0}));
}

TEST(Metrics, AFreshRunStartsAFreshFile) {
  const TempDir directory;
  const std::string path = (directory / "metrics.jsonl").string();
  std::ofstream(path) << "{\"step\":0}\n";
  const Metrics metrics(path, -1);
  EXPECT_EQ(content(path), "");
}

}  // namespace
}  // namespace stepc::train
