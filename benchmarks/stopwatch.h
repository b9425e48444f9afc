// How long pieces of code take, one alone or several in turn, so that what disturbs the machine disturbs all of them.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace stepc {

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = Clock::now();
  work();
  return seconds_since(begin);
}

// The upper one of an even number.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Seconds of the best of `rounds` interleaved runs of each piece, after one that is not counted.
inline std::vector<double> best_interleaved(const std::vector<std::function<void()>>& pieces, int rounds) {
  std::vector<double> best(pieces.size(), std::numeric_limits<double>::infinity());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const double seconds = seconds_of(pieces[i]);
      if (round >= 0) best[i] = std::min(best[i], seconds);
    }
  }
  return best;
}

}  // namespace stepc
