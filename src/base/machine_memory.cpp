#include "base/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/text.h"

namespace stepc {

namespace {
namespace fs = std::filesystem;

// UINT64_MAX where the file is not there or has no number: "max" is no limit.
uint64_t limit_in(const fs::path& file) {
  std::ifstream stream(file);
  uint64_t bytes = 0;
  return stream >> bytes ? bytes : UINT64_MAX;
}

// Of the group and those above it, up to `root`. Inside a container the path may be one of outside: then root alone.
uint64_t lowest_limit(const fs::path& root, const fs::path& group, const char* file) {
  uint64_t lowest = limit_in(root / file);
  for (fs::path path = group.relative_path(); !path.empty(); path = path.parent_path())
    lowest = std::min(lowest, limit_in(root / path / file));
  return lowest;
}
}  // namespace

// A line is "0::/user.slice/run" in version 2 and "4:memory:/run" in version 1.
uint64_t control_group_limit(const fs::path& membership, const fs::path& groups) {
  uint64_t lowest = UINT64_MAX;
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = split(parts[1], ',');
    if (parts[0] == "0") lowest = std::min(lowest, lowest_limit(groups, parts[2], "memory.max"));
    if (std::ranges::count(controllers, "memory") > 0)
      lowest = std::min(lowest, lowest_limit(groups / "memory", parts[2], "memory.limit_in_bytes"));
  }
  return lowest;
}

uint64_t usable_bytes() {
  const auto machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  return std::min(machine, control_group_limit("/proc/self/cgroup", "/sys/fs/cgroup"));
}

// getrusage() would count what started this process, too: its ru_maxrss is handed on by exec().
uint64_t peak_process_bytes() {
  constexpr uint64_t kKibibyte = 1024;
  std::ifstream status("/proc/self/status");
  uint64_t kibibytes = 0;
  for (std::string word; status >> word;)
    if (word == "VmHWM:") status >> kibibytes;
  return kibibytes * kKibibyte;
}

uint64_t resident_process_bytes() {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace stepc
