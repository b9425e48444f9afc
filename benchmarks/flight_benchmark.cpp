// What noting an instruction costs the executor's loop: nanoseconds each, of a loop that does nothing else, beside the
// same loop without.
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/clock.h"
#include "comm/flight.h"

namespace {

constexpr uint32_t kInstructions = 300, kSteps = 20000, kRounds = 15;

template <bool kNotes>
double nanoseconds(stepc::Flight& flight) {
  const auto began = stepc::Clock::now();
  for (uint32_t step = 0; step < kSteps; ++step)
    for (uint32_t i = 0; i < kInstructions; ++i) {
      if constexpr (kNotes) flight.note(1, i);
      asm volatile("" ::: "memory");  // what else an instruction does is not to be moved across it
    }
  return 1e9 * stepc::seconds_since(began) / (double{kInstructions} * kSteps);
}

}  // namespace

int main() {
  stepc::Flight flight;
  double with = 1e9, without = 1e9;
  for (uint32_t round = 0; round < kRounds; ++round) {
    with = std::min(with, nanoseconds<true>(flight));
    without = std::min(without, nanoseconds<false>(flight));
  }
  std::printf("an instruction noted: %.2f ns (%.2f with, %.2f without)\n", with - without, with, without);
  return 0;
}
