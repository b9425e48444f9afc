#include "base/hash.h"

#include <xxhash.h>

#include "base/text.h"

namespace stepc {

uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_text(uint64_t hash) { return str("{:016x}", hash); }

}  // namespace stepc
