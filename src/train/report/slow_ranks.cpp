#include "train/report/slow_ranks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace stepc::train {

namespace {

// The median; of an even number of values the lower one, so that the slower of two ranks is compared with the other.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<std::string> SlowRanks::add(std::span<const double> seconds) {
  INTERNAL_CHECK_EQ(seconds.size(), hosts_.size());
  for (size_t rank = 0; rank < seconds.size(); ++rank) seconds_[rank].push_back(seconds[rank]);
  if (seconds_[0].size() < kWindow) return std::nullopt;
  std::vector<double> typical;
  for (std::vector<double>& of : seconds_) typical.push_back(median_of(std::exchange(of, {})));
  const double of_all = median_of(typical);
  std::vector<size_t> slow, twice;
  for (size_t rank = 0; rank < typical.size(); ++rank)
    if (typical[rank] > kSlow * of_all && typical[rank] > of_all + kLeast) slow.push_back(rank);
  std::ranges::set_intersection(slow, before_, std::back_inserter(twice));
  const bool is_better = slow.empty() && before_.empty() && !told_.empty();
  before_ = std::move(slow);
  if (is_better) {
    told_.clear();
    return "no rank is slow any more";
  }
  std::string text;
  for (const size_t rank : twice)
    if (std::ranges::count(told_, rank) == 0)
      text += str("{}rank {} on {} computes {:.1f} ms a step", text.empty() ? "" : ", ", rank, hosts_[rank],
                  1e3 * typical[rank]);
  if (text.empty()) return std::nullopt;
  told_ = twice;
  return str("slow: {}, the median rank {:.1f} ms; what they wait for is not counted", text, 1e3 * of_all);
}

}  // namespace stepc::train
