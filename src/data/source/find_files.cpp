#include "data/source/find_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

#include <glob.h>
#include <sys/stat.h>

#include "base/check.h"

namespace stepc {

namespace fs = std::filesystem;

namespace {
std::vector<fs::path> files_in(const fs::path& directory) {
  constexpr std::array<std::string_view, 4> kEndings = {".txt", ".jsonl", ".ndjson", ".parquet"};
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string ending = entry.path().extension().string();
    if (std::ranges::find(kEndings, ending) != kEndings.end() && entry.is_regular_file()) files.push_back(entry.path());
  }
  USER_CHECK(!error, "cannot read {}: {}", directory.string(), error.message());
  USER_CHECK(!files.empty(), "{}: no .txt, .jsonl or .parquet file is in this directory", directory.string());
  std::ranges::sort(files);
  return files;
}

std::vector<fs::path> files_like(const std::string& pattern) {
  glob_t found = {};
  const int failure = ::glob(pattern.c_str(), GLOB_MARK, nullptr, &found);
  std::vector<fs::path> files;
  for (size_t i = 0; failure == 0 && i < found.gl_pathc; ++i)
    if (const std::string_view name = found.gl_pathv[i]; !name.ends_with('/')) files.emplace_back(name);
  ::globfree(&found);
  USER_CHECK(!files.empty(), "{}: no file has such a name", pattern);
  std::ranges::sort(files);
  return files;
}
}  // namespace

std::vector<fs::path> find_files(const std::string& name) {
  struct stat info = {};
  if (::stat(name.c_str(), &info) == 0) return S_ISDIR(info.st_mode) ? files_in(name) : std::vector<fs::path>{name};
  const std::string reason = std::generic_category().message(errno);
  USER_CHECK(name.find_first_of("*?[") != std::string::npos, "cannot open {}: {}", name, reason);
  return files_like(name);
}

}  // namespace stepc
