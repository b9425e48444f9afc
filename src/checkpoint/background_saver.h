// Saves checkpoints on a thread of its own, so that training goes on while files are written: one save at a time, of a
// copy that the caller made before. A save is acknowledged when poll() or wait() returns it; the error of one that
// failed is thrown there instead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>

#include "checkpoint/checkpoint.h"

namespace stepc {

struct SavedCheckpoint {
  std::filesystem::path directory;
  int64_t step = 0;
  uint64_t bytes = 0;  // of all files
  double seconds = 0;  // from begin() until it was durable
};

class BackgroundSaver {
 public:
  // Writes the caller's files into the directory, on the saver's thread.
  using WriteFiles = std::function<void(const std::filesystem::path& directory, FileSystem& files)>;

  explicit BackgroundSaver(std::filesystem::path output, FileSystem& files = system_files())
      : output_(std::move(output)), files_(files) {}
  // Waits; an error that nobody asked for goes to the log.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  [[nodiscard]] bool in_flight() const { return saving_.valid(); }
  // None may be in flight. What `retention` does not keep is removed once the new checkpoint is durable.
  void begin(const TrainerState& state, const Retention& retention, WriteFiles write_files);
  // The save that has ended since the last call, if one has.
  std::optional<SavedCheckpoint> poll();
  // The same, of the save in flight: waits for it.
  std::optional<SavedCheckpoint> wait();

 private:
  std::filesystem::path output_;
  FileSystem& files_;
  std::future<SavedCheckpoint> saving_;
};

}  // namespace stepc
