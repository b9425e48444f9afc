#include "base/hash.h"

#include <new>

#include <xxhash.h>

#include "base/text.h"

namespace stepc {

uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct RunningHash::State {
  XXH3_state_t* hash = XXH3_createState();
};

RunningHash::RunningHash() : state_(std::make_unique<State>()) {
  if (!state_->hash) throw std::bad_alloc();
  XXH3_64bits_reset(state_->hash);
}
RunningHash::~RunningHash() { XXH3_freeState(state_->hash); }
void RunningHash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->hash, bytes.data(), bytes.size());
}
uint64_t RunningHash::value() const { return XXH3_64bits_digest(state_->hash); }

std::string hash_text(uint64_t hash) { return str("{:016x}", hash); }

}  // namespace stepc
