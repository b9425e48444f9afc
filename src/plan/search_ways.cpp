// The ways that a search looks at: which there are, what they are called, and what kind each is.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "plan/search.h"
#include "plan/stages/stage_order.h"

namespace stepc {

namespace {

// More tokens of a rank in a micro-batch fill no device better.
constexpr int64_t kMostTokens = 65536;

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= number; ++d)
    if (number % d == 0) out.push_back(d);
  return out;
}

// Pins that no mesh of so many devices can have are named: one, or the first two that do not go together.
void check_pins(const SearchPins& pins, int64_t devices) {
  struct Pin {
    std::string_view name;
    int64_t size;
  };
  std::vector<Pin> all;
  for (const auto& [name, pin] :
       std::initializer_list<std::pair<std::string_view, std::optional<int64_t>>>{{"pp", pins.pp},
                                                                                  {"dp_replicate", pins.dp_replicate},
                                                                                  {"dp_shard", pins.dp_shard},
                                                                                  {"cp", pins.cp},
                                                                                  {"tp", pins.tp}})
    if (pin) all.push_back({name, *pin});
  for (const auto& [name, size] : all)
    USER_CHECK(size >= 1 && devices % size == 0, "parallel.{} = {}: the cluster has {} devices, which is no multiple",
               name, size, devices);
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = i + 1; j < all.size(); ++j)
      USER_CHECK(devices % (all[i].size * all[j].size) == 0,
                 "parallel.{} = {} and parallel.{} = {} contradict each other: the cluster has {} devices, which is no "
                 "multiple of {}",
                 all[i].name, all[i].size, all[j].name, all[j].size, devices, all[i].size * all[j].size);
}

bool allows(const std::optional<int64_t>& pin, int64_t value) { return !pin || *pin == value; }

// Whether layers can be cut into stages for so many ranks.
bool has_stages(const SearchModel& model, const SearchPins& pins, int64_t pp) {
  return pp * chunks_of(pins) <= model.most_stages;
}

// Whether the order of a pipeline's passes takes so many; of a file nobody knows before it is read.
bool takes_micro_batches(const SearchModel& model, const SearchPins& pins, int64_t pp, int64_t micro_batches) {
  // Each such way is planned on its own, within a call that somebody waits for.
  if (model.cut && !pins.micro_batches &&
      (pp == 1 ? micro_batches > 1 : micro_batches % pp != 0 || micro_batches > 4 * pp))
    return false;
  if (pp == 1) return true;
  if (micro_batches == 1) return false;  // a step in parts has several
  if (pins.order == "1f1b" && pins.chunks > 1) return micro_batches % pp == 0;
  if (pins.order == "dualpipe-v") return micro_batches >= 2 * pp;
  return (pins.order != "1f1b" && pins.order != "zb-h1") || micro_batches >= pp;
}

// All ways with so many stages.
void add_ways(const SearchModel& model, const Cluster& cluster, const SearchPins& pins, int64_t pp,
              std::vector<Candidate>& out) {
  const int64_t devices = cluster.devices() / pp;
  for (const int64_t tp : divisors(devices)) {
    // Heads are not padded, and tp stays on the innermost links unless it is asked for.
    const bool is_near = tp <= cluster.devices_per_node;
    if (!allows(pins.tp, tp) || (!pins.tp && (model.heads % tp != 0 || !is_near)) || tp > model.heads) continue;
    for (const int64_t cp : divisors(devices / tp)) {
      // A ring cuts a row into 2 cp chunks.
      if (!allows(pins.cp, cp) || (cp > 1 && model.tokens % (2 * cp) != 0)) continue;
      for (const int64_t dp_shard : divisors(devices / tp / cp)) {
        const int64_t dp_replicate = devices / tp / cp / dp_shard;
        const int64_t data = dp_shard * dp_replicate;
        if (!allows(pins.dp_shard, dp_shard) || !allows(pins.dp_replicate, dp_replicate)) continue;
        if (model.rows % data != 0) continue;
        for (const int64_t micro_batches : divisors(model.rows / data)) {
          const int64_t rows = model.rows / data / micro_batches;  // of a rank
          if (!allows(pins.micro_batches, micro_batches) || !takes_micro_batches(model, pins, pp, micro_batches))
            continue;
          const bool is_usual = (rows & (rows - 1)) == 0 && rows * model.tokens / cp <= kMostTokens;
          if (!pins.micro_batches && !model.cut && rows > 1 && !is_usual) continue;
          const bool may_split = dp_shard * cp > 1;
          for (int zero = may_split ? 1 : 0; zero <= (may_split ? 3 : 0); ++zero) {
            if (may_split && !allows(pins.zero, zero)) continue;
            if (zero == 2 && micro_batches == 1 && !pins.zero) continue;  // is zero 1
            out.push_back({pp, dp_replicate, dp_shard, cp, tp, zero, micro_batches});
          }
        }
      }
    }
  }
}

}  // namespace

int64_t chunks_of(const SearchPins& pins) { return chunks_of(pins.order).value_or(pins.chunks); }

std::string to_text(const Candidate& candidate) {
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : ", ") + more; };
  const Mesh mesh = strategy_of(candidate, {}).mesh;
  add(mesh.axes.empty() ? "one device" : to_text(mesh));
  if (candidate.dp_shard * candidate.cp > 1) add(str("zero {}", candidate.zero));
  if (candidate.micro_batches > 1) add(str("{} micro-batches", candidate.micro_batches));
  return text;
}

Strategy strategy_of(const Candidate& candidate, const Strategy& base) {
  Strategy strategy = base;
  strategy.mesh = make_mesh({{"pp", candidate.pp},
                             {"dp_replicate", candidate.dp_replicate},
                             {"dp_shard", candidate.dp_shard},
                             {"cp", candidate.cp},
                             {"tp", candidate.tp}});
  strategy.zero = candidate.zero;
  return strategy;
}

std::string_view name_of(Family family) {
  switch (family) {
    case Family::kOneDevice:
      return "one device";
    case Family::kReplicated:
      return "data parallel (dp_replicate)";
    case Family::kSharded:
      return "sharded (dp_shard)";
    case Family::kHybrid:
      return "hybrid sharded (dp_replicate, dp_shard)";
    case Family::kTensor:
      return "tensor parallel (tp)";
    case Family::kContext:
      return "context parallel (cp)";
    case Family::kTensorAndContext:
      return "tensor and context parallel (tp, cp)";
    case Family::kPipeline:
      return "pipeline (pp)";
  }
  INTERNAL_CHECK(false, "no family");
}

Family family_of(const Candidate& one) {
  if (one.pp > 1) return Family::kPipeline;
  if (one.tp > 1) return one.cp > 1 ? Family::kTensorAndContext : Family::kTensor;
  if (one.cp > 1) return Family::kContext;
  if (one.dp_shard > 1) return one.dp_replicate > 1 ? Family::kHybrid : Family::kSharded;
  return one.dp_replicate > 1 ? Family::kReplicated : Family::kOneDevice;
}

size_t SearchResult::count(Verdict verdict) const {
  return static_cast<size_t>(std::ranges::count_if(outcomes, [&](const Outcome& one) {
    return one.verdict == verdict && (verdict == Verdict::kPlanned || !one.is_open);
  }));
}

size_t SearchResult::open() const { return static_cast<size_t>(std::ranges::count(outcomes, true, &Outcome::is_open)); }

const Outcome* SearchResult::best() const {
  const bool is_there = !outcomes.empty() && outcomes.front().verdict == Verdict::kPlanned;
  return is_there ? &outcomes.front() : nullptr;
}

std::vector<Candidate> candidates(const SearchModel& model, const Cluster& cluster, const SearchPins& pins) {
  const int64_t devices = cluster.devices();
  check_pins(pins, devices);
  USER_CHECK(pins.pp.value_or(1) == 1 || has_stages(model, pins, *pins.pp), "parallel.pp = {}: {}", pins.pp.value_or(1),
             !model.cut && model.most_stages < model.layers
                 ? std::string("a step of two gradients is not searched in stages; leave out optim.name = \"wsam\"")
                 : str("the model has {} layers, and each of {} stages needs one", model.most_stages,
                       pins.pp.value_or(1) * chunks_of(pins)));
  std::vector<Candidate> out;
  for (const int64_t pp : divisors(devices))
    if (allows(pins.pp, pp) && (pp == 1 || has_stages(model, pins, pp))) add_ways(model, cluster, pins, pp, out);
  USER_CHECK(!out.empty(),
             "no way spreads {} rows of {} tokens over {} devices as it is asked: their number must be a multiple of "
             "dp_replicate * dp_shard * micro-batches; give other train.batch_size or other pins",
             model.rows, model.tokens, devices);
  return out;
}

}  // namespace stepc
