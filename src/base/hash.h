// The 64-bit content hash of files and token streams: XXH3. It finds damage, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace stepc {

uint64_t hash_bytes(std::span<const std::byte> bytes);

// The same of bytes that come part by part.
class RunningHash {
 public:
  RunningHash();
  ~RunningHash();
  RunningHash(const RunningHash&) = delete;
  RunningHash& operator=(const RunningHash&) = delete;

  void add(std::span<const std::byte> bytes);
  [[nodiscard]] uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hexadecimal digits: how a hash is written in files.
std::string hash_text(uint64_t hash);

}  // namespace stepc
