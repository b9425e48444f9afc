// KernelCache: a directory of compiled objects, one file a key. An entry holds its whole key and a checksum: what is
// damaged, cut short or another key's is not found. Written beside and renamed, so any number of processes may share a
// directory. Never a reason to fail: a directory that cannot be used is only reported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace stepc {

class KernelCache {
 public:
  // Empty: no cache. The directory is made when it is first written to.
  explicit KernelCache(std::filesystem::path directory) : directory_(std::move(directory)) {}

  struct Lookup {
    std::optional<std::string> object;
    bool damaged = false;  // there is a file, and it is not what was written
  };
  [[nodiscard]] Lookup find(std::string_view key) const;
  // Empty, or why it was not kept.
  [[nodiscard]] std::string keep(std::string_view key, std::string_view object) const;

  [[nodiscard]] bool enabled() const { return !directory_.empty(); }
  [[nodiscard]] std::filesystem::path path_of(std::string_view key) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace stepc
