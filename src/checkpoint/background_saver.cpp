#include "checkpoint/background_saver.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/manifest.h"

namespace stepc {

namespace {
uint64_t total_bytes(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}
}  // namespace

BackgroundSaver::~BackgroundSaver() {
  try {
    wait();
  } catch (const std::exception& error) {
    log().error("the last checkpoint was not saved: {}", error.what());
  }
}

void BackgroundSaver::begin(const TrainerState& state, const Retention& retention, WriteFiles write_files) {
  INTERNAL_CHECK(!in_flight(), "a checkpoint is being saved already");
  saving_ = std::async(std::launch::async, [this, state, retention, write_files = std::move(write_files)] {
    const auto began = Clock::now();
    SavedCheckpoint saved;
    saved.step = state.step;
    CheckpointWriter writer(output_, state, files_);
    write_files(writer.path(), files_);
    saved.directory = writer.commit();
    saved.seconds = seconds_since(began);
    saved.bytes = total_bytes(read_manifest(saved.directory));
    prune_checkpoints(output_, retention, files_);
    return saved;
  });
}

std::optional<SavedCheckpoint> BackgroundSaver::poll() {
  const bool ended = in_flight() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return ended ? wait() : std::nullopt;
}

std::optional<SavedCheckpoint> BackgroundSaver::wait() {
  if (!in_flight()) return std::nullopt;
  return saving_.get();
}

}  // namespace stepc
