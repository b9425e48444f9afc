// manifest.json of a checkpoint: which files it has, their sizes and hashes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/file_system.h"

namespace stepc {

struct ManifestFile {
  uint64_t bytes = 0;
  std::string xxh3;  // 16 hexadecimal digits
  bool operator==(const ManifestFile&) const = default;
};

struct Manifest {
  int64_t step = 0;
  std::map<std::string, ManifestFile> files;  // by name, without the manifest itself
};

inline constexpr const char* kManifestName = "manifest.json";

// Hashes every file of the directory.
Manifest make_manifest(const std::filesystem::path& directory, int64_t step);
void write_manifest(const std::filesystem::path& directory, const Manifest& manifest,
                    FileSystem& files = system_files());
// Takes nothing but the very bytes that write_manifest() gives.
Manifest read_manifest(const std::filesystem::path& directory);

// UserErrors name the file that is missing, has another size, or (check_hashes) another content.
void check_sizes(const std::filesystem::path& directory, const Manifest& manifest);
void check_hashes(const std::filesystem::path& directory, const Manifest& manifest);

}  // namespace stepc
