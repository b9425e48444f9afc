// Saves checkpoints on a thread of its own, so that training goes on while files are written: one save at a time, of a
// copy that the caller made before. A save is acknowledged when poll() or wait() returns it; the error of one that
// failed is thrown there instead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
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
  // The same by several processes, which agree on when each of these is called. One opens: where all write.
  std::filesystem::path open(const TrainerState& state);
  // Each begins to write files there whose names begin with `own`. poll_written() gives what they are, once they are
  // durable; the error of a write that failed is thrown there.
  void begin_writing(const std::filesystem::path& directory, std::string own, WriteFiles write_files);
  std::optional<ManifestFiles> poll_written();
  // Then the one that opened begins the rest: `finish_files`, the manifest of what all have written, and the rename.
  void begin_commit(const ManifestFiles& written, const std::string& mesh, const Retention& retention,
                    WriteFiles finish_files);
  // The save that has ended since the last call, if one has.
  std::optional<SavedCheckpoint> poll();
  // The same, of the save in flight: waits for it.
  std::optional<SavedCheckpoint> wait();

 private:
  SavedCheckpoint finish(CheckpointWriter& writer, const ManifestFiles& known, const std::string& mesh,
                         const Retention& retention);

  std::filesystem::path output_;
  FileSystem& files_;
  std::unique_ptr<CheckpointWriter> writer_;  // of a save by several, until its commit begins
  int64_t step_ = 0;
  Clock::time_point began_;
  std::future<ManifestFiles> writing_;
  std::future<SavedCheckpoint> saving_;
};

}  // namespace stepc
