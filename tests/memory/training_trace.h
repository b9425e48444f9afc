// Allocations of training steps, made up or recorded, for the tests and benchmarks of memory/.
#pragma once

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "memory/layout.h"

namespace stepc {

// A training step as an allocator sees it: every layer's forward leaves activations and uses short-lived workspaces,
// backward frees them in reverse and leaves gradients, the update frees those. Sizes vary from layer to layer.
class TrainingTrace {
 public:
  TrainingTrace(int layers, int ops_per_layer, uint64_t seed) : random_(seed) {
    std::vector<std::vector<size_t>> saved(layers);
    for (auto& activations : saved) {
      for (int op = 0; op < ops_per_layer; ++op) {
        activations.push_back(allocate(size()));
        if (op % 3 == 0) free(allocate(size() / 4));
      }
    }
    std::vector<size_t> gradients;
    size_t upstream = allocate(size());
    for (size_t layer = saved.size(); layer-- > 0;) {
      while (!saved[layer].empty()) {
        const size_t workspace = allocate(size() / 2);
        const size_t downstream = allocate(size());
        if (random_() % 4 == 0) gradients.push_back(allocate(size() / 8));
        free(workspace);
        free(upstream);
        free(saved[layer].back());
        saved[layer].pop_back();
        upstream = downstream;
      }
    }
    free(upstream);
    for (const size_t gradient : gradients) {
      free(allocate(64));
      free(gradient);
    }
  }
  [[nodiscard]] const LayoutProblem& problem() const { return problem_; }

 private:
  uint64_t size() { return (uint64_t{1} << (10 + random_() % 8)) + random_() % 1000; }
  size_t allocate(uint64_t bytes) {
    problem_.intervals.push_back({bytes, clock_, INT64_MAX});
    ++clock_;
    return problem_.intervals.size() - 1;
  }
  void free(size_t interval) { problem_.intervals[interval].last = clock_++; }

  LayoutProblem problem_;
  int64_t clock_ = 0;
  std::mt19937_64 random_;
};

// Reads lines "bytes first last"; '#' starts a comment line.
inline LayoutProblem read_trace(const std::string& path) {
  std::ifstream file(path);
  INTERNAL_CHECK(file.good(), "cannot read {}", path);
  LayoutProblem problem;
  while (file >> std::ws && !file.eof()) {
    if (file.peek() == '#') {
      file.ignore(10'000, '\n');
      continue;
    }
    Interval interval;
    INTERNAL_CHECK(file >> interval.bytes >> interval.first >> interval.last, "{}: not 'bytes first last'", path);
    problem.intervals.push_back(interval);
  }
  return problem;
}

// Lifetimes and sizes without any structure: the hardest kind.
inline LayoutProblem random_problem(size_t count, int64_t longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  LayoutProblem problem;
  for (size_t i = 0; i < count; ++i) {
    const auto first = static_cast<int64_t>(random() % count);
    const auto ticks = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(longest));
    problem.intervals.push_back({1 + random() % 100'000, first, first + ticks});
  }
  return problem;
}

}  // namespace stepc
