#include "checkpoint/manifest.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/tensor_files.h"
#include "ir/mesh.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr const char* kFormat = "stepc checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kSlicesVersion = 2;  // has a mesh
constexpr uint64_t kMaxManifestBytes = 16 << 20;

// Piece by piece: a mapped file is memory of the process as long as it has been read.
std::string hash_of(const MappedFile& file) {
  constexpr size_t kPiece = size_t{4} << 20;
  const std::span<const std::byte> bytes = file.bytes();
  RunningHash hash;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const size_t end = std::min(bytes.size(), at + kPiece);
    hash.add(bytes.subspan(at, end - at));
    file.let_go(at, end);
  }
  return hash_text(hash.value());
}

template <class Act>
void for_every_file(const fs::path& directory, const Act& act) {
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    act(entry->path(), entry->path().filename().string());
  USER_CHECK(!error, "cannot list {}: {}", directory.string(), error.message());
}

ManifestFile hashed(const fs::path& path) {
  const MappedFile file(path);  // refuses what is not a file
  return {file.bytes().size(), hash_of(file)};
}

ManifestFiles files_of(const Json& files, const std::string& what) {
  ManifestFiles found;
  for (const auto& [name, entry] : files.items()) {
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    USER_CHECK(plain, "{}: {} is not a plain file name", what, in_quotes(name));
    const std::string file = str("{}: {}", what, in_quotes(name));
    const std::string& hash = json_string(entry, "xxh3", file);
    USER_CHECK(hash.size() == 16 && hash.find_first_not_of("0123456789abcdef") == std::string::npos,
               "{}: xxh3 must be 16 hexadecimal digits, found {}", file, in_quotes(hash));
    found[name] = {static_cast<uint64_t>(json_int(entry, "bytes", file, 0, INT64_MAX)), hash};
  }
  return found;
}

nlohmann::ordered_json json_of(const ManifestFiles& files) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, file] : files) json[name] = {{"bytes", file.bytes}, {"xxh3", file.xxh3}};
  return json;
}

std::string text_of(const Manifest& manifest) {
  nlohmann::ordered_json json = {
      {"format", kFormat}, {"version", manifest.mesh.empty() ? kVersion : kSlicesVersion}, {"step", manifest.step}};
  if (!manifest.mesh.empty()) json["mesh"] = manifest.mesh;
  json["files"] = json_of(manifest.files);
  return json.dump(2) + "\n";
}
}  // namespace

Manifest make_manifest(const fs::path& directory, int64_t step, const ManifestFiles& known) {
  Manifest manifest;
  manifest.step = step;
  check_sizes(directory, {step, known});
  for_every_file(directory, [&](const fs::path& path, const std::string& name) {
    const auto found = known.find(name);
    manifest.files[name] = found != known.end() ? found->second : hashed(path);
  });
  return manifest;
}

ManifestFiles hash_files(const fs::path& directory, const std::string& beginning) {
  ManifestFiles files;
  for_every_file(directory, [&](const fs::path& path, const std::string& name) {
    if (name.starts_with(beginning)) files[name] = hashed(path);
  });
  return files;
}

std::string to_text(const ManifestFiles& files) { return json_of(files).dump(); }

ManifestFiles parse_manifest_files(const std::string& text) {
  return files_of(parse_json(text, "a rank's files"), "a rank's files");
}

void write_manifest(const fs::path& directory, const Manifest& manifest, FileSystem& files) {
  write_file_synced(directory / kManifestName, text_of(manifest), files);
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  const std::string what = path.string();
  const std::string text = read_text(path, kMaxManifestBytes);
  const Json json = parse_json(text, what);
  const std::string& format = json_string(json, "format", what);
  USER_CHECK(format == kFormat, "{}: format is {}, expected \"{}\"", what, in_quotes(format), kFormat);
  const int64_t version = json_int(json, "version", what, 1, INT64_MAX);
  USER_CHECK(version == kVersion || version == kSlicesVersion, "{}: version {}, this stepc reads versions {} and {}",
             what, version, kVersion, kSlicesVersion);

  Manifest manifest;
  manifest.step = json_int(json, "step", what, 0, INT64_MAX);
  if (version == kSlicesVersion) manifest.mesh = json_string(json, "mesh", what);
  manifest.files = files_of(json_object(json, "files", what), what);
  USER_CHECK(text_of(manifest) == text, "{}: it was changed after it was written", what);
  return manifest;
}

void check_sizes(const fs::path& directory, const Manifest& manifest) {
  for (const auto& [name, expected] : manifest.files) {
    const fs::path path = directory / name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    USER_CHECK(!error, "{}: {}", path.string(), error.message());
    USER_CHECK(bytes == expected.bytes, "{}: {} bytes, the manifest says {}", path.string(), bytes, expected.bytes);
  }
}

void check_hashes(const fs::path& directory, const Manifest& manifest) {
  check_sizes(directory, manifest);
  for (const auto& [name, expected] : manifest.files) {
    const fs::path path = directory / name;
    const MappedFile file(path);
    const std::string found = hash_of(file);
    USER_CHECK(found == expected.xxh3, "{}: the content is damaged: XXH3 {}, the manifest says {}", path.string(),
               found, in_quotes(expected.xxh3));
  }
}

void check_mesh(const fs::path& directory, const Manifest& manifest) {
  const std::string what = (directory / kManifestName).string();
  int64_t ranks = 0;
  if (!manifest.mesh.empty()) try {
      ranks = parse_mesh(manifest.mesh).ranks();
    } catch (const UserError& error) {
      user_error("{}: mesh {}: {}", what, in_quotes(manifest.mesh), error.what());
    }
  bool has_slices = false;
  for (const auto& [name, entry] : manifest.files) {
    const auto file = parse_slice_file(name);
    if (!file) continue;
    has_slices = true;
    USER_CHECK(ranks > 0, "{}: {} holds a rank's slices, but the manifest has no mesh", what, name);
    USER_CHECK(file->rank < ranks, "{}: {} is of rank {}, but the mesh {} has {} ranks", what, name, file->rank,
               in_quotes(manifest.mesh), ranks);
    const SafetensorsReader reader(directory / name);
    const auto mesh = reader.metadata().find(kMeshKey);
    const std::string says = mesh == reader.metadata().end() ? "" : mesh->second;
    USER_CHECK(says == manifest.mesh, "{}: the mesh is {}, but {} was written on {}", what, in_quotes(manifest.mesh),
               name, in_quotes(says));
  }
  USER_CHECK(has_slices || ranks == 0, "{}: the mesh is {}, but no file holds slices", what, in_quotes(manifest.mesh));
}

}  // namespace stepc
