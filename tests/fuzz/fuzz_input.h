// What every fuzz target shares. A target is one file with libFuzzer's entry point; it may throw UserError for input
// that it refuses, which is the one good way to refuse, and nothing else. The tests run all of them on seeds that are
// damaged by rule; a compiler with libFuzzer builds each into a program of its own (-DSTEPC_FUZZ=ON).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "base/check.h"

namespace stepc {

inline std::string_view fuzz_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs `body`; a refusal must be one line that is not long.
template <class Body>
int fuzz_one(const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    const std::string_view said = error.what();
    if (said.empty() || said.find('\n') != std::string_view::npos || said.size() > 1000) std::abort();
    return 1;  // refused; libFuzzer asks for 0, and takes anything but -1 as that
  }
  return 0;
}

// A name for files of this process, in memory where there is such a place. What is there when the process ends goes.
inline std::filesystem::path fuzz_path(const std::string& name) {
  struct Leftovers {
    std::set<std::filesystem::path> paths;
    ~Leftovers() {
      std::error_code ignored;
      for (const std::filesystem::path& path : paths) std::filesystem::remove_all(path, ignored);
    }
  };
  static Leftovers leftovers;
  const std::filesystem::path memory = "/dev/shm";
  const bool usable = ::access(memory.c_str(), W_OK) == 0;
  return *leftovers.paths
              .insert((usable ? memory : std::filesystem::temp_directory_path()) /
                      (name + "-" + std::to_string(::getpid())))
              .first;
}

// The input as a file, for readers that map one. One a process.
inline std::filesystem::path fuzz_file(const uint8_t* data, size_t size) {
  auto path = fuzz_path("stepc-fuzz");
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return path;
}

}  // namespace stepc
