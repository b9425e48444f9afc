// search(): the best way to spread a captured step over a cluster, with reasons. Every mesh of the devices, with every
// zero and every count of micro-batches, is planned as a run's step is, and the simulator gives its time. Plain data in
// and out: needs neither the model's weights nor a device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "ir/graph.h"
#include "passes/fp8.h"
#include "passes/partition/strategy.h"
#include "passes/recompute.h"
#include "passes/stages/cut_stages.h"

namespace stepc {

// A step as functions, in micro-batches and stages.
struct StepCut {
  std::vector<Graph> before;  // functions of sums that micro-batches need before they begin, and what each adds
  StageCut micro_batch, update;
};

struct Candidate;

// A model of equal layers. Work that its layers share is planned once: the step is planned with kShallow and kDeep
// layers, and the difference of one layer is added for each of the other layers.
struct SearchModel {
  int64_t layers = 1;
  int64_t heads = 1;                           // that tp can split
  int64_t tokens = 1;                          // of a row
  int64_t rows = 1;                            // of a step, over all devices
  int64_t most_stages = 1;                     // of a pipeline; each begins with a layer
  std::optional<double> document_tokens = {};  // as in PlanGraphOptions
  std::optional<Fp8Recipe> fp8 = {};           // of its linear layers, if they multiply in float8
  // The step of a model with this many layers, of all rows, as functionalise() makes it. `is_cut`: it is then cut into
  // micro-batches or stages.
  std::function<Graph(int64_t layers, bool is_cut)> capture;
  // For a step of unknown layers, a model of one layer: how a run would cut the step for a way of several micro-batches
  // or stages. `strategy`: of the mesh without stages; receives the shardings of the parameters.
  // `recompute`: how stages recompute what their backward passes need; nullptr: they keep it. Throws UserError for a
  // step that cannot be cut in this way.
  std::function<StepCut(const Candidate& way, Strategy& strategy, const RecomputeOptions* recompute)> cut = {};
};
inline constexpr int64_t kShallow = 1, kDeep = 2;

// The fixed choices; nullopt: searched.
struct SearchPins {
  std::optional<int64_t> pp = {}, dp_replicate = {}, dp_shard = {}, cp = {}, tp = {};
  std::optional<int64_t> zero = {};
  std::optional<int64_t> micro_batches = {};
  std::string order = "1f1b";  // of a pipeline's passes (plan/stages/stage_order.h)
  int64_t chunks = 1;          // stages of the pipeline on a rank
  Strategy base = {};          // the rest of the strategy
};
int64_t chunks_of(const SearchPins& pins);  // stages of a pipeline on a rank; the order may fix their number

struct Candidate {
  int64_t pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  int zero = 0;  // 0 if dp_shard and cp are 1
  int64_t micro_batches = 1;
  bool operator==(const Candidate&) const = default;
};
// "dp_shard=8,tp=2, zero 3, 4 micro-batches".
std::string to_text(const Candidate& candidate);
Strategy strategy_of(const Candidate& candidate, const Strategy& base);

// A kind of strategy, by its usual name.
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
  kPlanned,     // planned, and it fits
  kNotFaster,   // by a bound; not planned to the end
  kDoesNotFit,  // planned, and too large even with recomputation
  kTooLarge,    // its memory between steps is too large; not planned
  kImpossible,  // the step cannot be split in this way
};

struct Outcome {
  Candidate candidate;
  Verdict verdict = Verdict::kNotFaster;
  double least_seconds = 0;     // lower bound of the time of every plan
  uint64_t least_bytes = 0;     // lower bound of the memory of every plan
  double seconds = 0;           // of a step; this and all below: of the plan
  double exchange_seconds = 0;  // of these, in collectives
  double exposed_seconds = 0;   // of these, while nothing else runs
  double waiting_seconds = 0;   // in which a pipeline's ranks wait for each other, on average
  uint64_t state_bytes = 0;     // parameters, held gradients, optimizer state, buffers
  uint64_t step_bytes = 0;      // all other bytes at the step's peak
  bool recomputes = false;      // in order to fit
  double roomy_seconds = 0;     // of a step with as much memory as it can use: `roomy_bytes`
  uint64_t roomy_bytes = 0;
  std::string why = {};  // the reason for missing numbers
  bool is_open = false;  // the search stopped before it had planned it to the end, or left it out
  [[nodiscard]] uint64_t bytes() const { return state_bytes + step_bytes; }
};

struct SearchResult {
  std::vector<Outcome> outcomes;                      // planned ways that fit, the fastest first; then all others
  size_t planned = 0;                                 // Schedules made
  double seconds = 0;                                 // of the search
  [[nodiscard]] size_t count(Verdict verdict) const;  // of ways that are not open, or planned
  [[nodiscard]] size_t open() const;                  // ways
  // The fastest way that fits; nullptr if nothing fits.
  [[nodiscard]] const Outcome* best() const;
};

struct SearchOptions {
  SearchPins pins = {};
  size_t top = 5;              // the number of best ways whose order is certain
  bool is_exhaustive = false;  // no bound excludes a way
  size_t most_plans = 0;       // the search stops when it has made so many; 0: when no bound is below the best
  std::vector<std::string> without = {};  // passes that are left out, to see what they gain
  std::function<void(size_t done, size_t all)> progress = {};
};

// All possible ways, in one order. Throws UserError for pins that contradict each other, the devices or the batch.
std::vector<Candidate> candidates(const SearchModel& model, const Cluster& cluster, const SearchPins& pins);

// Throws UserError if no way is possible.
SearchResult search(const SearchModel& model, const Cluster& cluster, const SearchOptions& options);

}  // namespace stepc
