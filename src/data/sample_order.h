// The order of training samples: a pure function of (seed, sample index). The samples are endless; every `count` of
// them, an epoch, are a permutation of the windows 0..count-1, each epoch another one. Nothing is stored, so resuming
// is asking for the next index.
#pragma once

#include <cstdint>

namespace stepc {

// A keyed bijection on [0, count): a Feistel network over the next power of four, walked until it lands inside.
class Permutation {
 public:
  Permutation(uint64_t count, uint64_t key);
  [[nodiscard]] uint64_t operator()(uint64_t index) const;

 private:
  [[nodiscard]] uint64_t encrypt(uint64_t value) const;

  uint64_t count_, key_;
  int half_bits_;
};

// The window of sample `index`, in [0, count).
uint64_t window_of_sample(uint64_t seed, uint64_t count, uint64_t index);

}  // namespace stepc
