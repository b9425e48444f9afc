#include "plan/search_bounds.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "plan/stages/stage_order.h"

namespace stepc {

namespace {

// What is learnt of one shape for another allows for this part: kernels are chosen, and recomputation is, shape by
// shape.
constexpr double kOtherShape = 0.02;

// Whether a rank may compute for one micro-batch while it waits for another.
bool overlaps_itself(const SearchPins& pins) {
  return chunks_of(pins) > 1 || pins.order == "zb-h1" || pins.order == "zb-v" || pins.order == "dualpipe-v";
}

}  // namespace

void SearchBounds::add(const Candidate& way, std::vector<double> of_stages, bool recomputes) {
  const double of_micro_batch = std::accumulate(of_stages.begin(), of_stages.end(), 0.0);
  const double seconds = of_micro_batch * static_cast<double>(way.micro_batches) / static_cast<double>(way.pp);
  planned_.push_back({way, seconds, with_waiting(way, of_stages), recomputes});
}

void SearchBounds::add_stages(const Candidate& way, StagesTaken shallow, StagesTaken deep) {
  layered_.push_back({way, std::move(shallow), std::move(deep)});
}

int64_t SearchBounds::rows_of_rank(const Candidate& way) const {
  return model_.rows / way.micro_batches / (way.dp_replicate * way.dp_shard);
}

double SearchBounds::tokens_of_rank(const Candidate& way) const {
  return static_cast<double>(rows_of_rank(way) * model_.tokens) / static_cast<double>(way.cp);
}

// Whether ranks hold the same parts of parameters and of the state. With cp the passes depend on it: a step that is not
// split along cp may compute with the parts that the ranks hold. In float8 too, for a rank scales the part that it
// holds.
bool SearchBounds::holds_alike(const Candidate& one, const Candidate& other) const {
  return (!model_.fp8 && other.cp == 1) || (one.dp_shard == other.dp_shard && one.zero == other.zero);
}

// A plan of the same pp, tp, cp and rows computes as long in its forward and backward pass.
bool SearchBounds::computes_alike(const Candidate& one, const Candidate& other) const {
  return one.pp == other.pp && one.tp == other.tp && one.cp == other.cp && rows_of_rank(one) == rows_of_rank(other) &&
         holds_alike(one, other);
}

// Whether a way splits the step at least as far: the same work in smaller pieces, which no kernel does faster.
bool SearchBounds::splits_further(const Candidate& one, const Candidate& other) const {
  return !model_.fp8 && one.pp % other.pp == 0 && one.tp % other.tp == 0 && one.cp % other.cp == 0 &&
         tokens_of_rank(one) <= tokens_of_rank(other) && holds_alike(one, other);
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
  if (way.pp == 1) return seconds;
  const auto m = static_cast<double>(way.micro_batches), n = static_cast<double>(way.pp);
  const double of_micro_batch = seconds * n / m;
  if (overlaps_itself(pins_)) return std::max(seconds, of_micro_batch);
  // As below. If the step takes x, stage 0 takes x / m at most for each of m micro-batches, stage 1 (x - x / m) / m and
  // so on.
  return of_micro_batch / (1 - std::pow(1 - 1 / m, n));
}

// Before the first pass of stage s and behind its last one a micro-batch is in all stages before s.
double SearchBounds::with_waiting(const Candidate& way, const std::vector<double>& of_stages) const {
  const auto m = static_cast<double>(way.micro_batches);
  if (overlaps_itself(pins_))
    return with_waiting(way,
                        std::accumulate(of_stages.begin(), of_stages.end(), 0.0) * m / static_cast<double>(way.pp));
  double before = 0, most = 0;
  for (const double seconds : of_stages) {
    most = std::max(most, before + m * seconds);
    before += seconds;
  }
  return most;
}

// The most that planned ways say. `of`: of a planned way, and whether it has the same work in the same pieces.
template <typename Of>
double SearchBounds::least(const Candidate& way, const Of& of) const {
  double least = 0;
  for (const Planned& known : planned_) {
    const bool is_alike = computes_alike(way, known.way);
    if (!known.recomputes && is_alike)
      least = std::max(least, of(known, true));
    else if (!known.recomputes && splits_further(way, known.way))
      least = std::max(least, of(known, false) * (1 - kOtherShape));
    else if (known.recomputes && is_alike && holds_more(way, known.way))
      least = std::max(least, of(known, true) * (1 - kOtherShape));
  }
  return least;
}

double SearchBounds::least_compute_seconds(const Candidate& way) const {
  return least(way, [](const Planned& known, bool) { return known.compute_seconds; });
}

double SearchBounds::least_pass_seconds(const Candidate& way) const {
  const double seconds = least(way, [&](const Planned& known, bool is_alike) {
    return is_alike ? known.pass_seconds : with_waiting(way, known.compute_seconds);
  });
  return std::max(seconds, of_other_depths(way) * (1 - kOtherShape));
}

// Of pipelines alike but for the number of stages, each has as many layers as balance gives it.
double SearchBounds::of_other_depths(const Candidate& way) const {
  if (way.pp == 1) return 0;
  const int64_t stages = way.pp * chunks_of(pins_);
  const auto says = [&](const Layered& known) {
    Candidate other = known.way;
    other.pp = way.pp;
    return known.shallow.size() == static_cast<size_t>(std::min(stages, kShownStages)) && computes_alike(way, other);
  };
  const auto known = std::ranges::find_if(layered_, says);
  if (known == layered_.end()) return 0;
  auto [found, is_new] = of_other_depths_.try_emplace({way.pp, way.cp, way.tp, way.micro_batches});
  if (is_new)
    found->second = with_waiting(
        way, compute_seconds_of(with_all_layers(known->shallow, known->deep,
                                                layers_of_stages(known->shallow, known->deep, stages, model_.layers))));
  return found->second;
}

const SearchBounds::TooLarge* SearchBounds::too_large(const Candidate& way) const {
  const auto found =
      std::ranges::find_if(too_large_, [&](const TooLarge& other) { return holds_more(way, other.way); });
  return found == too_large_.end() ? nullptr : &*found;
}

}  // namespace stepc
