// search(): how a captured step is best spread over a cluster, and why. Every way of cutting the devices into a mesh,
// of zero and of micro-batches is planned as a run's step is, and the simulator says what it takes. Plain data in and
// out: neither the model's weights nor a device is needed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "ir/graph.h"
#include "passes/partition/strategy.h"
#include "passes/recompute.h"
#include "passes/stages/cut_stages.h"

namespace stepc {

// A part of a step as it was captured, before anything splits it: the whole step, or a micro-batch and the update.
struct SearchPart {
  std::string name;
  int64_t times = 1;  // in a step
  Graph graph;        // as functionalise() leaves it
};

// A step as functions, in micro-batches and stages.
struct StepCut {
  std::vector<Graph> before;  // of sums that micro-batches need before they begin, what each adds
  StageCut micro_batch, update;
};

struct Candidate;

// A model of equal layers. What its layers share is planned once: the step is planned with kShallow and kDeep layers,
// and what a further layer adds is taken for each of the others.
struct SearchModel {
  int64_t layers = 1;
  int64_t heads = 1;        // that tp can split
  int64_t tokens = 1;       // of a row
  int64_t rows = 1;         // of a step, over all devices
  int64_t most_stages = 1;  // of a pipeline, which begin with layers
  // The step of a model with so many layers whose micro-batches, all devices' together, have `rows` rows.
  std::function<std::vector<SearchPart>(int64_t layers, int64_t rows, int64_t micro_batches)> capture;
  // Of a step that is captured in one piece, a model of one layer: how a run would cut it for a way of several
  // micro-batches or stages. `strategy`: of the mesh without stages; it learns how parameters lie. `recompute`: what
  // stages keep for their backward passes is recomputed so; nullptr: it is kept. UserError for a step that cannot be
  // cut so.
  std::function<StepCut(const Candidate& way, Strategy& strategy, const RecomputeOptions* recompute)> cut = {};
};
inline constexpr int64_t kShallow = 1, kDeep = 2;

// What is not to be chosen; nullopt: is searched.
struct SearchPins {
  std::optional<int64_t> pp = {}, dp_replicate = {}, dp_shard = {}, cp = {}, tp = {};
  std::optional<int64_t> zero = {};
  std::optional<int64_t> micro_batches = {};
  std::string order = "1f1b";  // of a pipeline's passes (plan/stages/stage_order.h)
  int64_t chunks = 1;          // its stages on a rank
  Strategy base = {};          // what else a strategy says
};
int64_t chunks_of(const SearchPins& pins);  // a pipeline's stages on a rank: those of its order, if that says

struct Candidate {
  int64_t pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  int zero = 0;  // 0 where dp_shard is 1
  int64_t micro_batches = 1;
  bool operator==(const Candidate&) const = default;
};
// "dp_shard=8,tp=2, zero 3, 4 micro-batches".
std::string to_text(const Candidate& candidate);
Strategy strategy_of(const Candidate& candidate, const Strategy& base);

// A kind of strategy, as people name them.
enum class Family : uint8_t {
  kOneDevice,
  kReplicated,
  kSharded,
  kHybrid,
  kTensor,
  kContext,
  kTensorAndContext,
  kPipeline
};
inline constexpr size_t kFamilies = 8;
std::string_view name_of(Family family);  // "data parallel (dp_replicate)"
Family family_of(const Candidate& candidate);

enum class Verdict : uint8_t {
  kPlanned,     // it fits
  kNotFaster,   // a bound says so: not planned to its end
  kDoesNotFit,  // planned, and too large also with recomputation
  kTooLarge,    // what it holds between steps is too large: not planned
  kImpossible,  // the step cannot be split so
};

struct Outcome {
  Candidate candidate;
  Verdict verdict = Verdict::kNotFaster;
  double least_seconds = 0;     // no plan takes less
  uint64_t least_bytes = 0;     // nor holds less
  double seconds = 0;           // of a step; of what was planned, as all below
  double exchange_seconds = 0;  // of these, in collectives
  double exposed_seconds = 0;   // and of these, while nothing else runs
  double waiting_seconds = 0;   // that a pipeline's ranks wait for each other, on average
  uint64_t state_bytes = 0;     // parameters, gradients that are held, optimizer state, buffers
  uint64_t step_bytes = 0;      // all else at the step's peak
  bool recomputes = false;      // to fit
  double roomy_seconds = 0;     // of a step with as much memory as it likes: `roomy_bytes`
  uint64_t roomy_bytes = 0;
  std::string why = {};  // of what is not there
  [[nodiscard]] uint64_t bytes() const { return state_bytes + step_bytes; }
};

struct SearchResult {
  std::vector<Outcome> outcomes;  // what was planned and fits first, the fastest first; then all else
  size_t planned = 0;             // Schedules made
  double seconds = 0;             // that the search took
  [[nodiscard]] size_t count(Verdict verdict) const;
  // The fastest that fits; nullptr: nothing does.
  [[nodiscard]] const Outcome* best() const;
};

struct SearchOptions {
  SearchPins pins = {};
  size_t top = 5;              // so many of the best are told from each other
  bool is_exhaustive = false;  // nothing is left out by a bound
  std::function<void(size_t done, size_t all)> progress = {};
};

// The ways that there are, in one order. UserError for pins that contradict each other, the devices or the batch.
std::vector<Candidate> candidates(const SearchModel& model, const Cluster& cluster, const SearchPins& pins);

// UserError where there is no way at all.
SearchResult search(const SearchModel& model, const Cluster& cluster, const SearchOptions& options);

}  // namespace stepc
