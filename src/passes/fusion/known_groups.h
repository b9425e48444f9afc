// KnownGroups: whether a group can be one kernel, by everything that the answer depends on. Computing the answer takes
// most of fuse()'s time, and groups recur: in every layer, in every graph that recompute() tries, and in every plan of
// a search. Threads may share one.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace stepc {

class KnownGroups {
 public:
  [[nodiscard]] std::optional<bool> find(const std::string& key) const {
    const std::scoped_lock lock(mutex_);
    const auto found = known_.find(key);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(std::string key, bool is_kernel) {
    const std::scoped_lock lock(mutex_);
    known_.emplace(std::move(key), is_kernel);
  }

  [[nodiscard]] size_t size() const {
    const std::scoped_lock lock(mutex_);
    return known_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, bool> known_;
};

}  // namespace stepc
