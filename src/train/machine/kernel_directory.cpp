#include "train/machine/kernel_directory.h"

#include <cstdlib>

namespace stepc {

std::filesystem::path kernel_directory() {
  const auto from = [](const char* name, const std::filesystem::path& inside) {
    const char* directory = std::getenv(name);
    return directory == nullptr || *directory == '\0' ? std::filesystem::path() : directory / inside;
  };
  std::filesystem::path found = from("XDG_CACHE_HOME", "stepc/kernels");
  if (found.empty()) found = from("HOME", ".cache/stepc/kernels");
  return found;
}

}  // namespace stepc
