// Which shards a set of files gave the last time, so that files that did not change need not be read again. A set is
// known by the paths, sizes, inodes and times of its files, and by everything else that decides about shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace stepc {

class KnownSet {
 public:
  KnownSet(const std::filesystem::path& directory, const std::vector<std::filesystem::path>& files, uint64_t salt);

  // The names of the shards, if the set is known.
  [[nodiscard]] std::optional<std::vector<std::string>> shards() const;
  // Nothing is remembered while a file may still change without its time changing.
  void remember(const std::vector<std::string>& shards) const;

 private:
  std::filesystem::path path_;
  bool settled_ = true;
};

}  // namespace stepc
