#include "train/machine/pythons.h"

#include <cstdlib>
#include <filesystem>

namespace stepc::train {

std::vector<std::string> pythons() {
  namespace fs = std::filesystem;
  const char* given = std::getenv("STEPC_PYTHON");
  if (given != nullptr && *given != '\0') return {given};
  std::vector<std::string> found;
  const auto add = [&](const fs::path& python) {
    std::error_code ignored;
    if (fs::exists(python, ignored)) found.push_back(python.string());
  };
  const char* active = std::getenv("VIRTUAL_ENV");
  if (active != nullptr && *active != '\0') add(fs::path(active) / "bin" / "python");
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    add(folder / ".venv" / "bin" / "python");
  found.emplace_back("python3");
  return found;
}

}  // namespace stepc::train
