#include "comm/flight.h"

#include <algorithm>
#include <utility>

namespace stepc {

uint32_t Flight::add_program(Describe describe) {
  const std::scoped_lock lock(mutex_);
  programs_.push_back(std::move(describe));
  return static_cast<uint32_t>(programs_.size() - 1);
}

std::vector<Flight::Noted> Flight::last(uint64_t most) const {
  const uint64_t end = count();
  std::vector<Noted> noted;
  for (uint64_t at = end - std::min({most, end, kKept}); at < end; ++at) {
    const uint64_t word = ring_[at % kKept].load(std::memory_order_relaxed);
    const auto program = static_cast<uint32_t>(word >> 32), instruction = static_cast<uint32_t>(word);
    if (program == kStep)
      noted.push_back({.step = instruction});
    else
      noted.push_back({.program = program, .instruction = instruction});
  }
  return noted;
}

std::optional<FlightPlace> Flight::place_of(const Noted& noted) const {
  const std::scoped_lock lock(mutex_);
  if (noted.step >= 0 || noted.program >= programs_.size()) return std::nullopt;
  return programs_[noted.program](noted.instruction);
}

}  // namespace stepc
