// SlowRanks: which ranks of a run compute slower than the others. What they wait for each other does not count, so that
// the one is named whom all the others wait for.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stepc::train {

class SlowRanks {
 public:
  // `hosts`: by rank, the machines.
  explicit SlowRanks(std::vector<std::string> hosts) : hosts_(std::move(hosts)), seconds_(hosts_.size()) {}

  // What each rank computed in a step. Returns a line where a rank turns out slow, or is not any more: one that takes
  // half as long again as the median of all ranks, in two windows of eight steps one after the other.
  std::optional<std::string> add(std::span<const double> seconds);

 private:
  static constexpr size_t kWindow = 8;
  static constexpr double kSlow = 1.5;
  static constexpr double kLeast = 1e-3;  // seconds more than the others: less is noise

  std::vector<std::string> hosts_;
  std::vector<std::vector<double>> seconds_;  // by rank, of this window
  std::vector<size_t> before_;                // slow in the window before
  std::vector<size_t> told_;                  // slow, as far as anybody was told
};

}  // namespace stepc::train
