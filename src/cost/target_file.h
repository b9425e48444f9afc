// Where a machine's measured Target is kept: beside its generated kernels, one file a count of threads.
#pragma once

#include <filesystem>
#include <optional>

#include "cost/target.h"

namespace stepc {

// `directory` / "target-2-threads.toml".
std::filesystem::path target_file(const std::filesystem::path& directory, int threads);

// What was measured there with these threads; nullopt: nothing. UserError with file, line and key for one that
// cannot be read.
std::optional<Target> kept_target(const std::filesystem::path& directory, int threads);

// Replaces the file, whole or not at all.
void keep_target(const std::filesystem::path& directory, const Target& target);

// Held while a Target is measured that will be kept there. UserError where nothing can be written, before time is spent
// on measuring, and where another process holds it: each would take the other's work for the machine's pace.
class MeasuringHere {
 public:
  MeasuringHere(const std::filesystem::path& directory, int threads);
  ~MeasuringHere();
  MeasuringHere(const MeasuringHere&) = delete;
  MeasuringHere& operator=(const MeasuringHere&) = delete;

 private:
  int directory_ = -1;  // locked while it is open
};

}  // namespace stepc
