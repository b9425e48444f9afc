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

using ManifestFiles = std::map<std::string, ManifestFile>;

struct Manifest {
  int64_t step = 0;
  ManifestFiles files;    // by name, without the manifest itself
  std::string mesh = {};  // of the ranks whose slices the files hold, "dp_shard=4"; empty: no file holds slices
};

inline constexpr const char* kManifestName = "manifest.json";

// Of every file of the directory; those of `known` are not hashed again. UserError where one of them is not there.
Manifest make_manifest(const std::filesystem::path& directory, int64_t step, const ManifestFiles& known = {});
// Of the files whose names begin so.
ManifestFiles hash_files(const std::filesystem::path& directory, const std::string& beginning);
// `known` as a short text, and back.
std::string to_text(const ManifestFiles& files);
ManifestFiles parse_manifest_files(const std::string& text);
void write_manifest(const std::filesystem::path& directory, const Manifest& manifest,
                    FileSystem& files = system_files());
// Takes nothing but the very bytes that write_manifest() gives.
Manifest read_manifest(const std::filesystem::path& directory);

// UserErrors name the file that is missing, has another size, or (check_hashes) another content.
void check_sizes(const std::filesystem::path& directory, const Manifest& manifest);
void check_hashes(const std::filesystem::path& directory, const Manifest& manifest);
// That files of slices are those of the mesh: all say so, none is of a rank that it has not, and no file of slices is
// where there is no mesh.
void check_mesh(const std::filesystem::path& directory, const Manifest& manifest);

}  // namespace stepc
