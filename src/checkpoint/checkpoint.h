// Training checkpoints: directories `<output>/checkpoint-000200/` that Hugging Face loads as they are (the caller
// writes its model files into them) and that training resumes from. A manifest written last holds the size and hash of
// every file, so that a damaged checkpoint is known as one.
//
//   checkpoint-000200/
//     config.json model.safetensors tokenizer.json ...   the caller's model files
//     optimizer.safetensors                              the caller's optimizer and generator state
//     shard-00001-model-00001-of-00001.safetensors ...   in the stead of both, of each rank its slices (tensor_files.h)
//     trainer_state.json                                 TrainerState
//     manifest.json                                      {format, version, step, mesh, files: {name: {bytes, xxh3}}}
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/manifest.h"

namespace stepc {

struct TrainerState {
  int64_t step = 0;                     // optimizer steps done
  int64_t next_sample = 0;              // data position: index of the first sample that was not used yet
  uint64_t seed = 0;                    // of the sample order and of fresh weights
  uint64_t data_hash = 0;               // of the token stream, to notice that a run resumes on other data
  std::optional<double> held_out = {};  // loss after this step, nats per byte, where it was measured
  bool operator==(const TrainerState&) const = default;
};

// Writes one checkpoint; nothing is seen under its name before commit(), and without commit() nothing stays.
class CheckpointWriter {
 public:
  // An older checkpoint of the same step is replaced. What else has that name is left alone: a UserError.
  CheckpointWriter(const std::filesystem::path& output, const TrainerState& state, FileSystem& files = system_files());

  // Where the caller writes its files, all in this directory itself. So may other processes.
  [[nodiscard]] const std::filesystem::path& path() const { return transaction_.path(); }
  // Adds trainer_state.json and the manifest, syncs and renames. Returns the checkpoint's directory. Of files that
  // other processes have written, each durably, it need know sizes and hashes alone: `known`; `mesh`: of those whose
  // slices they hold.
  std::filesystem::path commit(const ManifestFiles& known = {}, const std::string& mesh = {});

 private:
  TrainerState state_;
  FileSystem& files_;
  DirectoryTransaction transaction_;
};

struct Checkpoint {
  std::filesystem::path directory;
  TrainerState state;
};

// Verifies every file's size and hash first; or its size alone, where another process has done that.
enum class CheckedBy : uint8_t { kHashes, kSizes };
Checkpoint read_checkpoint(const std::filesystem::path& directory, CheckedBy how = CheckedBy::kHashes);

// trainer_state.json of a checkpoint, where somebody else makes the rest of it.
void write_trainer_state(const std::filesystem::path& directory, const TrainerState& state,
                         FileSystem& files = system_files());

// The step that a checkpoint of this name is of; nullopt where it is not such a name.
std::optional<int64_t> step_of_name(const std::filesystem::path& directory);

// What stands in a run's directory under the names of checkpoints.
struct CheckpointSearch {
  // Something without a manifest of stepc's that can be read, whoever made it: a run never replaces it.
  struct Foreign {
    int64_t step = 0;  // by its name
    std::string why;   // names the file
  };
  std::optional<Checkpoint> latest;  // the valid one with the most steps
  std::vector<std::string> damaged;  // what is wrong with those that have more steps, most first
  std::vector<Foreign> foreign;
};
CheckpointSearch search_checkpoints(const std::filesystem::path& output);

// That of the most steps which has a manifest, without a look at its files; empty: none.
std::filesystem::path newest_directory(const std::filesystem::path& output);

// The latest alone. Damaged ones are skipped with a warning that says why.
std::optional<Checkpoint> find_latest_checkpoint(const std::filesystem::path& output);

// Which checkpoints stay: the `last` newest, those whose step is a multiple of `every` (0: none), and the one with the
// lowest held-out loss.
struct Retention {
  int64_t last = 1;
  int64_t every = 0;
  bool best = false;
};

// Removes the complete checkpoints that need not stay, and what is abandoned. Damaged ones, directories without a stepc
// manifest and those that somebody gave another name are not touched.
void prune_checkpoints(const std::filesystem::path& output, const Retention& retention,
                       FileSystem& files = system_files());

// Removes the checkpoints and the model in `output` that killed processes of this machine left half-written.
void remove_abandoned(const std::filesystem::path& output, FileSystem& files = system_files());

}  // namespace stepc
