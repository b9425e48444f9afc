// The place of a machine's measured Target: beside its generated kernels, one file for each number of threads.
#pragma once

#include <filesystem>
#include <optional>

#include "cost/target.h"

namespace stepc {

// `directory` / "target-2-threads.toml".
std::filesystem::path target_file(const std::filesystem::path& directory, int threads);

// The Target that was measured with these threads and kept there; nullopt: there is none. Throws UserError with file,
// line and key for a file that cannot be read.
std::optional<Target> kept_target(const std::filesystem::path& directory, int threads);

// Replaces the file atomically.
void keep_target(const std::filesystem::path& directory, const Target& target);

// A lock for the time in which a Target is measured that will be kept there. Throws UserError if nothing can be
// written, before time is spent on measuring, and if another process holds the lock: each would take the other's work
// for the speed of the machine.
class MeasuringHere {
 public:
  MeasuringHere(const std::filesystem::path& directory, int threads);
  ~MeasuringHere();
  MeasuringHere(const MeasuringHere&) = delete;
  MeasuringHere& operator=(const MeasuringHere&) = delete;

 private:
  int directory_ = -1;  // locked as long as it is open
};

}  // namespace stepc
