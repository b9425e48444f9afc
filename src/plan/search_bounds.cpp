#include "plan/search_bounds.h"

#include <algorithm>
#include <cmath>

#include "plan/stages/stage_order.h"

namespace stepc {

namespace {

// What is learnt of one shape for another allows for this part: kernels are chosen, and recomputation is, shape by
// shape.
constexpr double kOtherShape = 0.02;

}  // namespace

void SearchBounds::add(const Candidate& way, double seconds, bool recomputes) {
  planned_.push_back({way, seconds, recomputes});
}

int64_t SearchBounds::rows_of_rank(const Candidate& way) const {
  return model_.rows / way.micro_batches / (way.dp_replicate * way.dp_shard);
}

double SearchBounds::tokens_of_rank(const Candidate& way) const {
  return static_cast<double>(rows_of_rank(way) * model_.tokens) / static_cast<double>(way.cp);
}

// A plan of the same pp, tp, cp and rows computes as long in its forward and backward pass; in float8 one of the same
// dp_shard and zero too, because a rank scales the part of a parameter that it holds.
bool SearchBounds::computes_alike(const Candidate& one, const Candidate& other) const {
  return one.pp == other.pp && one.tp == other.tp && one.cp == other.cp && rows_of_rank(one) == rows_of_rank(other) &&
         (!model_.fp8 || (one.dp_shard == other.dp_shard && one.zero == other.zero));
}

// Whether a way splits the step at least as far: the same work in smaller pieces, which no kernel does faster.
bool SearchBounds::splits_further(const Candidate& one, const Candidate& other) const {
  return !model_.fp8 && one.pp % other.pp == 0 && one.tp % other.tp == 0 && one.cp % other.cp == 0 &&
         tokens_of_rank(one) <= tokens_of_rank(other);
}

// Whether a way holds at least what the other holds: as many rows, and nothing split further. The functions of stages
// hold the gradients that each micro-batch reduces longer than those that the update does, so zero must be alike there.
bool SearchBounds::holds_more(const Candidate& one, const Candidate& other) const {
  const bool splits_no_more = one.pp == 1 ? one.zero <= other.zero : std::max(one.zero, 1) == std::max(other.zero, 1);
  return one.pp == other.pp && one.tp == other.tp && one.cp == other.cp && other.dp_shard % one.dp_shard == 0 &&
         splits_no_more && rows_of_rank(one) >= rows_of_rank(other) &&
         (one.micro_batches > 1 || other.micro_batches == 1);
}

double SearchBounds::with_waiting(const Candidate& way, double seconds) const {
  const bool is_split = pins_.order == "zb-h1" || pins_.order == "zb-v" || pins_.order == "dualpipe-v";
  if (way.pp == 1) return seconds;
  const auto m = static_cast<double>(way.micro_batches), n = static_cast<double>(way.pp);
  const double of_micro_batch = seconds * n / m;
  if (chunks_of(pins_) > 1 || is_split) return std::max(seconds, of_micro_batch);
  // Before the first pass of stage s and behind its last one a micro-batch is in all stages before s. If the step takes
  // x, stage 0 takes x / m at most for each of m micro-batches, stage 1 (x - x / m) / m and so on.
  return of_micro_batch / (1 - std::pow(1 - 1 / m, n));
}

double SearchBounds::least_compute_seconds(const Candidate& way) const {
  double least = 0;
  for (const Planned& known : planned_) {
    double seconds = 0;
    if (!known.recomputes && computes_alike(way, known.way))
      seconds = known.seconds;
    else if (!known.recomputes && splits_further(way, known.way))
      seconds = known.seconds * (1 - kOtherShape);
    else if (known.recomputes && computes_alike(way, known.way) && holds_more(way, known.way))
      seconds = known.seconds * (1 - kOtherShape);
    least = std::max(least, seconds);
  }
  return least;
}

const SearchBounds::TooLarge* SearchBounds::too_large(const Candidate& way) const {
  const auto found =
      std::ranges::find_if(too_large_, [&](const TooLarge& other) { return holds_more(way, other.way); });
  return found == too_large_.end() ? nullptr : &*found;
}

}  // namespace stepc
