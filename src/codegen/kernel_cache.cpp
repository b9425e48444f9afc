#include "codegen/kernel_cache.h"

#include <atomic>
#include <fstream>
#include <span>

#include <unistd.h>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"

namespace stepc {

namespace {

constexpr std::string_view kHead = "stepc.kernel 1\n";
constexpr uint64_t kMostBytes = uint64_t{64} << 20;

uint64_t hash_of(std::string_view text) { return hash_bytes(std::as_bytes(std::span(text))); }

// head, key length, object length, checksum, newline, key, object
std::string entry_text(std::string_view key, std::string_view object) {
  const std::string body = str("{}{}", key, object);
  return str("{}{} {} {}\n{}", kHead, key.size(), object.size(), hash_text(hash_of(body)), body);
}

std::optional<std::string> object_of(std::string_view entry, std::string_view key) {
  if (!entry.starts_with(kHead)) return std::nullopt;
  entry.remove_prefix(kHead.size());
  const size_t line = entry.find('\n');
  if (line == std::string_view::npos) return std::nullopt;
  const std::string_view body = entry.substr(line + 1);
  if (body.size() < key.size() || body.substr(0, key.size()) != key) return std::nullopt;
  const std::string_view object = body.substr(key.size());
  const std::string wanted = str("{} {} {}", key.size(), object.size(), hash_text(hash_of(body)));
  if (entry.substr(0, line) != wanted) return std::nullopt;
  return std::string(object);
}

}  // namespace

std::filesystem::path KernelCache::path_of(std::string_view key) const {
  return directory_ / (hash_text(hash_of(key)) + ".kernel");
}

KernelCache::Lookup KernelCache::find(std::string_view key) const {
  if (!enabled()) return {};
  const std::filesystem::path path = path_of(key);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  try {
    std::optional<std::string> object = object_of(read_text(path, kMostBytes), key);
    const bool damaged = !object;
    return {std::move(object), damaged};
  } catch (const UserError&) {
    return {std::nullopt, true};
  }
}

// Not synced: what a crash leaves half written has no right checksum.
std::string KernelCache::keep(std::string_view key, std::string_view object) const {
  if (!enabled()) return {};
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) return str("cannot make {}: {}", directory_.string(), error.message());
  static std::atomic<uint64_t> count = 0;
  const std::filesystem::path path = path_of(key);
  const std::filesystem::path temporary = str("{}.tmp-{}-{}", path.string(), getpid(), count++);
  {
    std::ofstream out(temporary, std::ios::binary);
    out << entry_text(key, object);
    out.close();
    if (!out) {
      std::filesystem::remove(temporary, error);
      return str("cannot write {}", temporary.string());
    }
  }
  std::filesystem::rename(temporary, path, error);
  if (!error) return {};
  std::string problem = str("cannot write {}: {}", path.string(), error.message());
  std::filesystem::remove(temporary, error);
  return problem;
}

}  // namespace stepc
