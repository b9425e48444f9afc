#include "checkpoint/manifest.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
constexpr const char* kFormat = "stepc checkpoint";
constexpr int64_t kVersion = 1;
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

std::string text_of(const Manifest& manifest) {
  nlohmann::ordered_json json = {{"format", kFormat}, {"version", kVersion}, {"step", manifest.step}};
  auto& files = json["files"] = nlohmann::ordered_json::object();
  for (const auto& [name, file] : manifest.files) files[name] = {{"bytes", file.bytes}, {"xxh3", file.xxh3}};
  return json.dump(2) + "\n";
}
}  // namespace

Manifest make_manifest(const fs::path& directory, int64_t step) {
  Manifest manifest;
  manifest.step = step;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const MappedFile file(entry->path());  // refuses what is not a file
    manifest.files[entry->path().filename().string()] = {file.bytes().size(), hash_of(file)};
  }
  USER_CHECK(!error, "cannot list {}: {}", directory.string(), error.message());
  return manifest;
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
  USER_CHECK(version == kVersion, "{}: version {}, this stepc reads version {}", what, version, kVersion);

  Manifest manifest;
  manifest.step = json_int(json, "step", what, 0, INT64_MAX);
  const Json& files = json_object(json, "files", what);
  for (const auto& [name, entry] : files.items()) {
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    USER_CHECK(plain, "{}: {} is not a plain file name", what, in_quotes(name));
    const std::string file = str("{}: {}", what, in_quotes(name));
    const std::string& hash = json_string(entry, "xxh3", file);
    USER_CHECK(hash.size() == 16 && hash.find_first_not_of("0123456789abcdef") == std::string::npos,
               "{}: xxh3 must be 16 hexadecimal digits, found {}", file, in_quotes(hash));
    manifest.files[name] = {static_cast<uint64_t>(json_int(entry, "bytes", file, 0, INT64_MAX)), hash};
  }
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

}  // namespace stepc
