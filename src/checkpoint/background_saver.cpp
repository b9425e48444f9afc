#include "checkpoint/background_saver.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/manifest.h"
#include "checkpoint/sharing_files.h"

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
    if (writing_.valid()) writing_.wait();  // before the directory goes
    wait();
  } catch (const std::exception& error) {
    log().error("the last checkpoint was not saved: {}", error.what());
  }
}

SavedCheckpoint BackgroundSaver::finish(CheckpointWriter& writer, const ManifestFiles& known, const std::string& mesh,
                                        const Retention& retention) {
  SavedCheckpoint saved;
  saved.step = step_;
  saved.directory = writer.commit(known, mesh);
  saved.seconds = seconds_since(began_);
  saved.bytes = total_bytes(read_manifest(saved.directory));
  prune_checkpoints(output_, retention, files_);
  return saved;
}

void BackgroundSaver::begin(const TrainerState& state, const Retention& retention, WriteFiles write_files) {
  INTERNAL_CHECK(!in_flight(), "a checkpoint is being saved already");
  step_ = state.step;
  began_ = Clock::now();
  saving_ = std::async(std::launch::async, [this, state, retention, write_files = std::move(write_files)] {
    CheckpointWriter writer(output_, state, files_);
    SharingFiles sharing(files_, newest_directory(output_));
    write_files(writer.path(), sharing);
    return finish(writer, {}, {}, retention);
  });
}

std::filesystem::path BackgroundSaver::open(const TrainerState& state) {
  INTERNAL_CHECK(!in_flight(), "a checkpoint is being saved already");
  step_ = state.step;
  began_ = Clock::now();
  writer_ = std::make_unique<CheckpointWriter>(output_, state, files_);
  return writer_->path();
}

void BackgroundSaver::begin_writing(const std::filesystem::path& directory, std::string own, WriteFiles write_files) {
  INTERNAL_CHECK(!writing_.valid(), "files of a checkpoint are being written already");
  writing_ =
      std::async(std::launch::async, [this, directory, own = std::move(own), write_files = std::move(write_files)]() {
        SharingFiles sharing(files_, newest_directory(output_));
        write_files(directory, sharing);
        return hash_files(directory, own);
      });
}

std::optional<ManifestFiles> BackgroundSaver::poll_written() {
  const bool ended = writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  return ended ? std::optional(writing_.get()) : std::nullopt;
}

void BackgroundSaver::begin_commit(const ManifestFiles& written, const std::string& mesh, const Retention& retention,
                                   WriteFiles finish_files) {
  INTERNAL_CHECK(!in_flight() && writer_ != nullptr, "no checkpoint was opened");
  const std::shared_ptr<CheckpointWriter> writer = std::move(writer_);
  saving_ =
      std::async(std::launch::async, [this, writer, written, mesh, retention, finish_files = std::move(finish_files)] {
        finish_files(writer->path(), files_);
        return finish(*writer, written, mesh, retention);
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
