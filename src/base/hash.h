// The 64-bit content hash of files and token streams: XXH3. It finds damage, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stepc {

uint64_t hash_bytes(std::span<const std::byte> bytes);

// 16 lower-case hexadecimal digits: how a hash is written in files.
std::string hash_text(uint64_t hash);

}  // namespace stepc
