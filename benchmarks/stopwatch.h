// Times several pieces of code in turn, so that what disturbs the machine disturbs all of them, and keeps the best time
// of each.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <vector>

namespace stepc {

// Seconds of the best of `rounds` interleaved runs of each piece, after one that is not counted.
inline std::vector<double> best_interleaved(const std::vector<std::function<void()>>& pieces, int rounds) {
  std::vector<double> best(pieces.size(), std::numeric_limits<double>::infinity());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      pieces[i]();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (round >= 0) best[i] = std::min(best[i], seconds);
    }
  }
  return best;
}

}  // namespace stepc
