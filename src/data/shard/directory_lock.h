// One process at a time in a directory: an advisory lock on a file in it, which the system gives back when the process
// ends, however it ends.
#pragma once

#include <filesystem>
#include <functional>

namespace stepc {

class DirectoryLock {
 public:
  // Waits until the lock is free; `waiting` is called once, before waiting, if it is not.
  DirectoryLock(const std::filesystem::path& directory, const std::function<void()>& waiting);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace stepc
