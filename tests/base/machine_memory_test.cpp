#include "base/machine_memory.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/temp_dir.h"

namespace stepc {
namespace {

TEST(ControlGroupLimit, IsTheLowestOnTheWayUp) {
  const TempDir directory;
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((directory / file).parent_path());
    std::ofstream(directory / file) << text << "\n";
  };
  const auto limit = [&] { return control_group_limit(directory / "self", directory / "groups"); };
  EXPECT_EQ(limit(), UINT64_MAX);
  write("self", "0::/user.slice/run");
  EXPECT_EQ(limit(), UINT64_MAX);
  write("groups/user.slice/run/memory.max", "max");
  EXPECT_EQ(limit(), UINT64_MAX);
  write("groups/user.slice/memory.max", "5000000");
  EXPECT_EQ(limit(), 5000000U);
  write("groups/user.slice/run/memory.max", "4000000");
  EXPECT_EQ(limit(), 4000000U);
  write("groups/memory.max", "3000000");  // a container's own root
  EXPECT_EQ(limit(), 3000000U);
  write("self", "3:cpu,cpuacct:/a\n4:memory:/docker/b\n0::/");
  write("groups/memory/docker/b/memory.limit_in_bytes", "2000000");
  EXPECT_EQ(limit(), 2000000U);
}

}  // namespace
}  // namespace stepc
