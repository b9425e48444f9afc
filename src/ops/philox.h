// Philox 4x32 with 10 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), and the draws
// that the random ops make of it. Key: the seed; counter: the element's index, the draw's stream, the step. A pure
// function, so an element is the same under any partition, order or recomputation.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace stepc::philox {

using Words = std::array<uint32_t, 4>;

inline Words rounds(Words counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// One stream's draws of one step: the rng input is (seed, step).
struct Draw {
  int64_t seed, step, stream;

  [[nodiscard]] Words words(int64_t index) const {
    const auto at = static_cast<uint64_t>(index);
    const auto key = static_cast<uint64_t>(seed);
    return rounds({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(step)},
                  {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  }
  // From 0 to below 1, in steps of 2^-24.
  [[nodiscard]] double uniform(int64_t index) const { return unit(words(index)[0]); }
  // Mean 0, deviation 1, by Box and Muller.
  [[nodiscard]] double normal(int64_t index) const {
    const Words drawn = words(index);
    return std::sqrt(-2 * std::log(1 - unit(drawn[0]))) * std::cos(2 * std::numbers::pi * unit(drawn[1]));
  }

 private:
  static double unit(uint32_t word) { return static_cast<double>(word >> 8) * 0x1p-24; }
};

}  // namespace stepc::philox
