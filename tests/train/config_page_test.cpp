#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "base/files.h"
#include "tests/temp_dir.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {
namespace {

TEST(ConfigPage, IsAsItIsPrinted) {
  EXPECT_EQ(read_text(STEPC_SOURCE_DIR "/docs/config.md", 1 << 20), config_page())
      << "run: stepc config --page > docs/config.md";
}

TEST(ConfigPage, EveryKeyIsDocumentedOnce) {
  const std::string page = config_page();
  for (const Key& key : run_config_keys()) {
    const std::string row = "| `" + bare_name(key) + "` |";
    EXPECT_NE(page.find(row), std::string::npos) << key.name;
    EXPECT_EQ(key.help.find('|'), std::string::npos) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
  }
}

TEST(ConfigPage, TheDefaultsReadBack) {
  const TempDir directory;
  std::ofstream(directory / "run.toml") << default_toml();
  RunConfig expected;
  expected.model.path = "model";
  expected.output.dir = "out";
  expected.data.train = {"text.txt"};
  EXPECT_EQ(to_toml(load_run_config((directory / "run.toml").string(), {})), to_toml(expected));
}

}  // namespace
}  // namespace stepc::train
