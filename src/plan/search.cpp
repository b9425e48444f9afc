#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "cost/exchange.h"
#include "plan/search_bounds.h"
#include "plan/search_parts.h"
#include "plan/search_stages.h"
#include "plan/stages/stage_order.h"

namespace stepc {

namespace {

// A bucket of a cluster of GPUs: enough for its links to be at their rate behind the latency of many ranks, and as much
// as a layer of a large model (FSDP2 and Megatron send a layer at a time).
constexpr uint64_t kBucketBytes = uint64_t{256} << 20;

constexpr double kShareOfRecomputation = 0.125;  // steps in which a pipeline is looked at

constexpr double kRounding = 1e-9;  // of seconds that are summed in another order

constexpr double kLevel = 0.01;  // of expected times, a part of them
// The logarithm of what a plan is expected to take, by the bound of a way of which nothing is planned: at least, and
// for each halving of the work along cp and tp.
constexpr double kUnplanned = 0.25, kOfHalves = 0.05;

constexpr size_t kMostCuts = 16;  // that are kept at one time

class Searcher {
 public:
  Searcher(const SearchModel& model, const Cluster& cluster, const SearchOptions& options)
      : model_(model), cluster_(with_shared_cores(cluster)), options_(options), bounds_(model, options.pins) {
    memory_bytes_ = static_cast<uint64_t>(cluster.memory_bytes());
  }

  SearchResult run() {
    const auto begin = Clock::now();
    SearchResult result;
    for (const Candidate& one : candidates(model_, cluster_, options_.pins)) {
      Outcome outcome{.candidate = one};
      bound(outcome);
      result.outcomes.push_back(outcome);
    }
    // What splits the step least comes first, for that says most of what splits it further; of these what holds least,
    // for where that does not fit, what holds more does not.
    std::ranges::stable_sort(result.outcomes, {}, [](const Outcome& one) {
      const Candidate& way = one.candidate;
      return std::tuple(way.cp, way.tp, way.pp, -way.dp_shard, -way.zero, -way.micro_batches);
    });
    plan_all(result.outcomes);
    std::ranges::stable_sort(result.outcomes, {}, [](const Outcome& one) {
      const bool fits = one.verdict == Verdict::kPlanned;
      return std::tuple(!fits, fits ? one.seconds : static_cast<double>(one.verdict), one.least_seconds);
    });
    result.planned = planned_;
    result.seconds = seconds_since(begin);
    return result;
  }

 private:
  // What is still to be planned of a way, one step after the other, each dearer than the one before; none: nothing.
  struct Step {
    std::function<Step(Outcome&)> plan = {};
  };

  // Best first (after Hart, Nilsson, Raphael, A formal basis for the heuristic determination of minimum cost paths,
  // 1968): of all ways the one that is expected to take least takes its next step, which raises its bound, until no
  // bound is below the best plans. So a way is planned no further than to where its bound leaves it out, and a search
  // that stops before that has planned good ones. The order alone goes by what is expected: of a way that has begun,
  // half way between its bound and its time with exchanges that block.
  void plan_all(std::vector<Outcome>& outcomes) {
    std::vector<Step> steps(outcomes.size());
    std::set<std::pair<double, size_t>> open;  // by level
    for (size_t i = 0; i < outcomes.size(); ++i) {
      if (outcomes[i].verdict == Verdict::kTooLarge) continue;
      steps[i].plan = [this](Outcome& outcome) { return plan_first(outcome); };
      open.emplace(level_of(outcomes[i], false), i);
    }
    std::vector<bool> has_begun(outcomes.size(), false);
    const auto level_now = [&](size_t i) { return level_of(outcomes[i], has_begun[i]); };
    std::multiset<double> best;  // seconds
    size_t done = 0;
    const auto cannot_be_faster = [&](size_t i) {
      return best.size() >= options_.top &&
             outcomes[i].least_seconds >= *std::next(best.begin(), static_cast<ptrdiff_t>(options_.top) - 1);
    };
    const bool is_limited = !options_.is_exhaustive && options_.most_plans > 0;
    while (!open.empty() && (!is_limited || planned_ < options_.most_plans)) {
      const auto [level, i] = *open.begin();
      open.erase(open.begin());
      Outcome& outcome = outcomes[i];
      if (outcome.verdict != Verdict::kPlanned && !options_.is_exhaustive) {
        tighten(outcome);
        if (outcome.verdict == Verdict::kTooLarge) continue;
        if (level_now(i) > level) {
          open.emplace(level_now(i), i);
          continue;
        }
      }
      if (!options_.is_exhaustive && cannot_be_faster(i)) continue;
      if (options_.progress && !has_begun[i]) options_.progress(done++, outcomes.size());
      has_begun[i] = true;
      if (outcome.verdict == Verdict::kPlanned) best.erase(best.find(outcome.seconds));
      steps[i] = step(outcome, steps[i]);
      if (outcome.verdict == Verdict::kDoesNotFit) bounds_.add_too_large(outcome.candidate, outcome.bytes());
      if (outcome.verdict == Verdict::kPlanned) best.insert(outcome.seconds);
      if (steps[i].plan) open.emplace(level_now(i), i);
    }
    for (size_t i = 0; i < outcomes.size() && !options_.is_exhaustive; ++i)
      if (!has_begun[i] && outcomes[i].verdict == Verdict::kNotFaster) tighten(outcomes[i]);
    for (const auto& [level, i] : open)
      if (outcomes[i].verdict != Verdict::kTooLarge) outcomes[i].is_open = !cannot_be_faster(i);
  }
  // Times that differ by less than a hundredth are one level: of these the way that holds least is planned to its end
  // first, because what it says of others may leave them out.
  static double level_of(const Outcome& one, bool has_begun) {
    const Candidate& way = one.candidate;
    const double above = kUnplanned + kOfHalves * std::log2(static_cast<double>(way.cp * way.tp));
    const double expected = has_begun ? (one.least_seconds + std::max(one.seconds, one.least_seconds)) / 2
                                      : one.least_seconds * std::exp(above);
    return std::floor(std::log(expected) / kLevel);
  }

  [[nodiscard]] static bool is_cut(const Candidate& one) { return one.pp > 1 || one.micro_batches > 1; }

  const Graph& captured(int64_t layers, bool is_cut) {
    std::optional<Graph>& kept = captured_[{layers, is_cut}];
    if (!kept) kept = model_.capture(layers, is_cut);
    return *kept;
  }

  // Of the whole step; its arithmetic does not depend on how the batch is cut.
  const WholeStep& whole(int64_t layers) {
    auto [found, is_new] = wholes_.try_emplace(layers);
    if (!is_new) return found->second;
    return found->second = whole_of(captured(layers, false));
  }
  double whole_bytes(InputKind kind) {
    return of_depth(whole(kShallow).bytes(kind), whole(deep()).bytes(kind), model_.layers);
  }
  double gradient_bytes() {
    return of_depth(whole(kShallow).gradient_bytes, whole(deep()).gradient_bytes, model_.layers);
  }
  [[nodiscard]] int64_t deep() const { return model_.layers == kShallow ? kShallow : kDeep; }

  // The arithmetic at the best rate of any product, evenly on all devices.
  double best_compute_seconds() {
    if (best_compute_seconds_ > 0) return best_compute_seconds_;
    const Target& target = cluster_.target;
    double best = std::max(target.narrow_flops_per_second, target.flops_per_second);
    for (const MatmulRate& rate : target.rates.matmuls)
      if (model_.fp8 && is_float8(rate.dtype)) best = std::max(best, rate.flops_per_second);
    const double flops = of_depth(whole(kShallow).flops, whole(deep()).flops, model_.layers);
    return best_compute_seconds_ = flops / static_cast<double>(cluster_.devices()) / best;
  }
  // Of a way whose computation takes so long at least: what must be sent is sent beside it, or, where exchanges block,
  // after it.
  [[nodiscard]] double least_seconds(double compute, double sending) const {
    const double sum = options_.pins.base.overlap_bytes ? std::max(compute, sending) : compute + sending;
    return sum * (1 - kRounding);
  }

  // What no plan goes below. Memory: all that an axis can split is split evenly along it. Time: the arithmetic at the
  // best rate of any product, evenly on all devices; and gradients, and under zero new parameters, sent at the links'
  // rates with no latency.
  void bound(Outcome& outcome) {
    const Candidate& one = outcome.candidate;
    // Of a pipeline's ranks the average.
    const auto split = [&](bool is_sharded) {
      return static_cast<double>(one.pp * one.tp * (is_sharded ? one.dp_shard * one.cp : 1));
    };
    const double parameters = whole_bytes(InputKind::kParameter);
    outcome.least_bytes = static_cast<uint64_t>(
        parameters / split(one.zero == 3) + whole_bytes(InputKind::kOptimizerState) / split(one.zero >= 1) +
        (one.micro_batches > 1 ? gradient_bytes() / split(one.zero >= 2) : 0.0));
    outcome.least_seconds = std::max(bounds_.with_waiting(one, best_compute_seconds()), sending_seconds(one));
    if (outcome.least_bytes > memory_bytes_) {
      outcome.verdict = Verdict::kTooLarge;
      outcome.why =
          str("it would hold {} between steps, of {}", human_bytes(outcome.least_bytes), human_bytes(memory_bytes_));
    }
  }

  double sending_seconds(const Candidate& one) {
    const double parameters = whole_bytes(InputKind::kParameter);
    // In float8 a gathered parameter takes a byte an element; its gradient would be held in four.
    const double gathered = model_.fp8 ? std::min(parameters, gradient_bytes() / 4) : parameters;
    const Mesh mesh = strategy_of(one, {}).mesh;
    const auto seconds = [&](Collective kind, std::initializer_list<std::string_view> names, double whole) {
      std::vector<Axis> axes;
      for (const std::string_view name : names)
        if (const auto axis = mesh.find(name)) axes.push_back(*axis);
      if (axes.empty()) return 0.0;
      const auto ranks = static_cast<double>(mesh.size(axes));
      const double bytes = (ranks - 1) / ranks * whole / static_cast<double>(one.pp * one.tp * one.cp);
      return exchange(cluster_.target.rates, mesh, kind, {{}, axes, 1, 0, bytes, 0}).bytes_seconds;
    };
    // A micro-batch of a model of layers is a program of its own, which leaves nothing gathered. Along cp a step may
    // compute the same on all ranks: then each sends its part, and nothing goes along cp.
    const double times = model_.cut ? 1.0 : static_cast<double>(one.micro_batches);
    double sum = seconds(Collective::kReduceScatter, {"dp_shard"}, parameters) * (one.zero >= 2 ? times : 1);
    if (one.zero == 3) sum += seconds(Collective::kAllGather, {"dp_shard"}, gathered) * times;
    if (one.zero < 2)
      sum = std::max(sum, seconds(Collective::kReduceScatter, {"dp_replicate", "dp_shard"}, parameters));
    return sum;
  }

  void tighten(Outcome& outcome) {
    const Candidate& one = outcome.candidate;
    outcome.least_seconds =
        std::max(outcome.least_seconds, least_seconds(bounds_.least_pass_seconds(one), sending_seconds(one)));
    const SearchBounds::TooLarge* const found = bounds_.too_large(one);
    if (found == nullptr) return;
    outcome.verdict = Verdict::kTooLarge;
    outcome.least_bytes = std::max(outcome.least_bytes, found->bytes);
    outcome.why = str("it takes more than {}, which takes {}", to_text(found->way), human_bytes(found->bytes));
  }

  // How the parts are planned.
  struct How {
    std::optional<int64_t> parts = {};  // of exchanges beside the computation; none: exchanges block
    // By part: that those of the passes may take with the layers that they stand for, to be met by recomputation; none:
    // as much as they like.
    std::vector<double> most_bytes = {};
    std::shared_ptr<RecomputeLooks> looks = {};  // of attempts at the same way
    Context context = Context::kGather;          // of a step that is cut
  };

  // The way of attention for all functions of a step that is cut: that of the step in one piece, with exchanges that
  // block. It is of all rows, however they are cut.
  Context context_for(const Candidate& one) {
    const auto key = std::tuple(one.dp_replicate, one.dp_shard, one.cp, one.tp, one.zero);
    if (const auto found = contexts_.find(key); found != contexts_.end()) return found->second;
    const PlanGraphOptions options = plan_options(one, {}, model_.layers, kShallow);
    return contexts_[key] = context_of(captured(kShallow, true), options);
  }

  // Of a graph of `shown` layers that stands for one of `layers`. `parts`: as in How.
  [[nodiscard]] PlanGraphOptions plan_options(Candidate one, std::optional<int64_t> parts, int64_t layers,
                                              int64_t shown) const {
    PlanGraphOptions options;
    options.exchange_parts = parts;
    options.target = cluster_.target;
    options.document_tokens = model_.document_tokens;
    options.passes.settings.fp8 = model_.fp8;
    options.passes.without = options_.without;
    Strategy& strategy = options.passes.settings.strategy;
    one.pp = 1;  // what one rank of a stage does
    strategy = strategy_of(one, options_.pins.base);
    if (!parts) strategy.overlap_bytes = {};
    if (cluster_.target.gpu) strategy.bucket_bytes = kBucketBytes;
    // As many bytes as in a model of all layers.
    strategy.bucket_share =
        std::min(1.0, strategy.bucket_share * static_cast<double>(layers) / static_cast<double>(shown));
    return options;
  }

  // What runs once is the same however many rows there are.
  PartPlan plan_update(const Candidate& one, int64_t layers, size_t part, const Graph& graph,
                       const PlanGraphOptions& options) {
    const auto key = std::tuple(one.dp_replicate, one.dp_shard, one.cp, one.tp, one.zero, layers,
                                options.exchange_parts.value_or(0), part);
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = updates_.find(key); found != updates_.end()) return found->second;
    }
    PartPlan plan = plans_.plan(graph, options);
    const std::scoped_lock lock(mutex_);
    return updates_.emplace(key, std::move(plan)).first->second;
  }

  // The step of so many layers in time, as cut_in_time(); a way's plans, one after the other, begin with the same. Two
  // threads may be here at once.
  std::shared_ptr<const BatchCut> cut_of(const Candidate& one, int64_t layers, const Graph& step, Strategy& strategy) {
    {
      const std::scoped_lock lock(mutex_);
      for (const KeptCut& kept : cuts_)
        if (kept.way == one && kept.layers == layers && kept.context == strategy.context) {
          strategy.known = kept.known;
          return kept.cut;
        }
    }
    KeptCut kept{one, layers, strategy.context, {}, {}};
    kept.cut = std::make_shared<const BatchCut>(
        cut_in_time(step, one.micro_batches, strategy, cluster_.target.features, model_.fp8));
    kept.known = strategy.known;
    const std::scoped_lock lock(mutex_);
    if (cuts_.size() == kMostCuts) cuts_.pop_front();
    return cuts_.emplace_back(std::move(kept)).cut;
  }

  // The parts of one depth, of a captured step. Two threads may be here at once.
  std::vector<Taken> take(const Candidate& one, int64_t layers, const Graph& step, const How& how) {
    PlanGraphOptions options = plan_options(one, how.parts, model_.layers, layers);
    StepState state;
    std::vector<Taken> out;
    const auto take_part = [&](const Graph& graph, double times, bool has_passes) {
      const size_t part = out.size();
      options.looks = has_passes ? how.looks : nullptr;
      options.budget = {};
      if (has_passes && !how.most_bytes.empty())
        options.budget = {MemoryBudget::Kind::kBytes, static_cast<uint64_t>(how.most_bytes[part]),
                          more_layers(model_.layers)};
      PartPlan planned =
          has_passes || times > 1 ? plans_.plan(graph, options) : plan_update(one, layers, part, graph, options);
      state.merge(planned.state);
      planned.taken.times = times;
      planned.taken.has_passes = has_passes;
      if (!has_passes) planned.taken.pass_seconds = 0;
      out.push_back(planned.taken);
    };
    if (is_cut(one)) {
      Strategy& strategy = options.passes.settings.strategy;
      strategy.context = how.context;
      const auto kept = cut_of(one, layers, step, strategy);
      const BatchCut& cut = *kept;
      leave_out_what_is_done(options.passes);
      const auto times = static_cast<double>(one.micro_batches);
      for (const BatchCut::Round& round : cut.rounds) {
        take_part(round.micro_batch, times, true);
        take_part(round.update, 1, false);
      }
      for (const Graph& before : cut.before) take_part(before, times, false);
    } else {
      take_part(step, 1, true);
    }
    for (Taken& taken : out) taken.state_bytes = static_cast<double>(bytes_of(state));
    return out;
  }

  // Plans of few layers, which say what one of all takes.
  struct Depths {
    std::vector<Taken> shallow, deep;
    std::vector<Taken> squeezed;  // the deep ones, the passes within less memory; none: as they like
  };
  Depths take_both(const Candidate& one, std::optional<int64_t> parts) {
    const Graph& few = captured(kShallow, is_cut(one));
    const Graph& more = captured(deep(), is_cut(one));
    const How how = {.parts = parts, .context = is_cut(one) ? context_for(one) : Context::kGather};
    Depths depths;
    if (kShallow == deep()) {
      depths.shallow = depths.deep = take(one, kShallow, few, how);
    } else {
      std::future<std::vector<Taken>> beside =
          std::async(std::launch::async, [&] { return take(one, kShallow, few, how); });
      depths.deep = take(one, deep(), more, how);
      depths.shallow = beside.get();
    }
    planned_ += depths.shallow.size() + depths.deep.size();
    return depths;
  }
  std::vector<Taken> take_squeezed(const Candidate& one, const How& how) {
    ++planned_;
    return take(one, deep(), captured(deep(), is_cut(one)), how);
  }

  static Step step(Outcome& outcome, const Step& next) {
    try {
      return next.plan(outcome);
    } catch (const UserError& error) {
      outcome.verdict = Verdict::kImpossible;
      outcome.why = error.what();
      return {};
    }
  }
  Step plan_first(Outcome& outcome) {
    check(strategy_of(outcome.candidate, options_.pins.base));
    const bool is_in_parts = outcome.candidate.pp > 1 || (model_.cut && outcome.candidate.micro_batches > 1);
    return is_in_parts ? plan_stages(outcome) : plan_depths(outcome);
  }

  // Of all parts, each as often as it is in a step. Recomputation changes each layer of the model as it does each of
  // the few.
  double sum_of(const Depths& depths, double Taken::*of) {
    const double few = static_cast<double>(deep()), layers = static_cast<double>(model_.layers);
    double sum = 0;
    for (size_t p = 0; p < depths.deep.size(); ++p) {
      double part = of_depth(depths.shallow[p].*of, depths.deep[p].*of, model_.layers);
      if (is_squeezed(depths, p)) part += (depths.squeezed[p].*of - depths.deep[p].*of) / few * layers;
      sum += depths.deep[p].times * std::max(0.0, part);
    }
    return sum;
  }
  static bool is_squeezed(const Depths& depths, size_t p) {
    return !depths.squeezed.empty() && depths.deep[p].has_passes;
  }

  // The peak of part `p`.
  [[nodiscard]] uint64_t step_bytes(const Depths& depths, size_t p) const {
    const Taken& part = is_squeezed(depths, p) ? depths.squeezed[p] : depths.deep[p];
    return static_cast<uint64_t>(part.memory.peak_bytes(more_layers(model_.layers)));
  }

  void sum_up(Outcome& outcome, const Depths& depths) {
    outcome.seconds = sum_of(depths, &Taken::seconds);
    outcome.exchange_seconds = sum_of(depths, &Taken::exchange_seconds);
    outcome.exposed_seconds = sum_of(depths, &Taken::exposed_seconds);
    outcome.step_bytes = 0;
    for (size_t p = 0; p < depths.shallow.size(); ++p)
      outcome.step_bytes = std::max(outcome.step_bytes, step_bytes(depths, p));
    outcome.state_bytes =
        bytes_of_depth(depths.shallow.front().state_bytes, depths.deep.front().state_bytes, model_.layers);
    outcome.recomputes = !depths.squeezed.empty();
  }

  // Recomputes so much of the few layers that a model of all fits.
  void squeeze(Outcome& outcome, Depths& depths, const std::shared_ptr<RecomputeLooks>& looks,
               std::optional<int64_t> parts = {}) {
    const double room = static_cast<double>(memory_bytes_) - static_cast<double>(outcome.state_bytes);
    How how = {.parts = parts, .looks = looks};
    if (is_cut(outcome.candidate)) how.context = context_for(outcome.candidate);
    for (const Taken& part : depths.deep) how.most_bytes.push_back(part.input_bytes + std::max(0.0, room));
    depths.squeezed = take_squeezed(outcome.candidate, how);
    sum_up(outcome, depths);
  }

  // The way with its exchanges beside the computation, in as many parts as gain time; `outcome`: with those that block.
  // `with_parts`: the way in so many parts.
  void hide_exchanges(Outcome& outcome, const std::function<Outcome(int64_t parts)>& with_parts) const {
    for (int64_t parts = 1; parts <= kMostExchangeParts; parts *= 2) {
      if (parts > 1 && (outcome.candidate.tp == 1 || outcome.exposed_seconds < kLeastExposed * outcome.seconds)) return;
      const Outcome beside = with_parts(parts);
      const bool is_better = beside.seconds < outcome.seconds && beside.bytes() <= memory_bytes_;
      if (is_better) outcome = beside;
      if (!is_better && parts > 1) return;
    }
  }

  void does_not_fit(Outcome& outcome, std::string_view how) const {
    outcome.verdict = Verdict::kDoesNotFit;
    outcome.why = str("it takes {}, {} more than there is: {} between steps, {} within, {}",
                      human_bytes(outcome.bytes()), human_bytes(outcome.bytes() - memory_bytes_),
                      human_bytes(outcome.state_bytes), human_bytes(outcome.step_bytes), how);
  }

  // By stage, of a model of all layers. `recomputes`: all that can be.
  // `kept`: the same way, planned so that nothing is recomputed, whose stages have the same layers; nullptr: this is
  // it.
  StagesTaken take_stages_of(const Candidate& one, std::optional<int64_t> parts, bool recomputes,
                             const StagesTaken* kept) {
    const int64_t stages = one.pp * chunks_of(options_.pins), shown = std::min(stages, kShownStages);
    const int64_t layers = (model_.layers + stages - 1) / stages;
    const Context context = context_for(one);
    const auto options_of = [&](int64_t of_layers) {
      PlanGraphOptions options = plan_options(one, parts, layers, of_layers);
      options.passes.settings.strategy.context = context;
      return options;
    };
    // What is kept counts as often as a rank of the model holds it, or whatever else has the peak of the few layers
    // would leave nothing to gain. 1F1B holds as many micro-batches as there are ranks.
    const auto recompute_of = [&](int64_t of_layers) -> std::optional<RecomputeOptions> {
      if (!recomputes) return std::nullopt;
      RecomputeOptions all;
      all.budget_bytes = 0;
      all.more_layers = static_cast<double>(model_.layers) / static_cast<double>(of_layers) - 1;
      all.target = cluster_.target;
      all.matmuls = matmul_rule(all.target.features);
      return all;
    };
    if (model_.cut) {
      ++planned_;
      PlanGraphOptions options = options_of(layers);
      const std::optional<RecomputeOptions> recompute = recompute_of(model_.layers);
      const StepCut cut = model_.cut(one, options.passes.settings.strategy, recompute ? &*recompute : nullptr);
      return take_stages(cut, stages, one.micro_batches, options, plans_);
    }
    const int64_t deeper = model_.layers == stages ? kShallow : kDeep;
    const Graph& few = captured(shown * kShallow, true);
    const Graph& more = captured(shown * deeper, true);
    constexpr size_t kFunctions = 2;  // of each depth: the passes and the update
    planned_ += 2 * kFunctions;
    const bool splits =
        stage_order(options_.pins.order, one.pp, one.micro_batches, options_.pins.chunks).splits_backward();
    const auto take = [&](const Graph& step, int64_t a_stage) {
      PlanGraphOptions options = options_of(a_stage);
      const auto in_time = cut_of(one, shown * a_stage, step, options.passes.settings.strategy);
      const std::optional<RecomputeOptions> recompute = recompute_of(a_stage);
      const StepCut cut = cut_layers(*in_time, shown, a_stage, splits, recompute ? &*recompute : nullptr);
      return take_stages(cut, shown, one.micro_batches, options, plans_);
    };
    if (deeper == kShallow) {
      const StagesTaken taken = take(few, kShallow);
      return with_all_layers(taken, taken, std::vector<int64_t>(static_cast<size_t>(stages), kShallow));
    }
    std::future<StagesTaken> beside = std::async(std::launch::async, [&] { return take(few, kShallow); });
    const StagesTaken deep = take(more, deeper), shallow = beside.get();
    std::vector<int64_t> layers_of;
    if (kept != nullptr)
      for (const StageTaken& stage : *kept) layers_of.push_back(stage.layers);
    else
      layers_of = layers_of_stages(shallow, deep, stages, model_.layers);
    if (kept == nullptr) bounds_.add_stages(one, shallow, deep);
    return with_all_layers(shallow, deep, layers_of);
  }

  // A way with exchanges that block, which is quick to plan. Then with recomputation, where it does not fit; then with
  // exchanges beside the computation, where there are such: it takes as long as either alone at least.
  Step plan_depths(Outcome& outcome) {
    const Candidate& one = outcome.candidate;
    Depths depths = take_both(one, {});
    bounds_.add(one, {sum_of(depths, &Taken::pass_seconds) / static_cast<double>(one.micro_batches)}, false);
    sum_up(outcome, depths);
    outcome.roomy_seconds = outcome.seconds;
    outcome.roomy_bytes = outcome.bytes();
    // A plan that recomputes computes no less, and sends what must be sent.
    outcome.least_seconds =
        std::max(outcome.least_seconds, least_seconds(sum_of(depths, &Taken::compute_seconds), sending_seconds(one)));
    if (outcome.bytes() <= memory_bytes_) return fitting_depths(outcome, depths);
    return {[this, depths](Outcome& again) {
      Depths within = depths;
      squeeze(again, within, std::make_shared<RecomputeLooks>());
      if (again.bytes() <= memory_bytes_) {
        bounds_.add(again.candidate,
                    {sum_of(within, &Taken::pass_seconds) / static_cast<double>(again.candidate.micro_batches)}, true);
        return fitting_depths(again, within);
      }
      does_not_fit(again, "recomputation included");
      return Step();
    }};
  }
  Step fitting_depths(Outcome& outcome, const Depths& depths) {
    outcome.least_seconds = std::max(outcome.least_seconds,
                                     least_seconds(sum_of(depths, &Taken::compute_seconds), outcome.exchange_seconds));
    outcome.verdict = Verdict::kPlanned;
    if (!options_.pins.base.overlap_bytes || outcome.exposed_seconds == 0) return {};
    return {[this](Outcome& blocking) {
      const auto looks = std::make_shared<RecomputeLooks>();
      hide_exchanges(blocking, [&](int64_t parts) {
        Outcome beside = blocking;
        Depths in_parts = take_both(beside.candidate, parts);
        sum_up(beside, in_parts);
        if (beside.bytes() > memory_bytes_) squeeze(beside, in_parts, looks, parts);
        // What the first and the last layer wait for is no layer's: of two depths it may seem to fall with more.
        beside.seconds = std::max(beside.seconds, beside.least_seconds);
        return beside;
      });
      return Step();
    }};
  }

  // As plan_depths(). A run recomputes the cheapest first, and no more than fits asks for, so it takes no longer than
  // what lies evenly between all kept and all recomputed.
  Step plan_stages(Outcome& outcome) {
    const Candidate& one = outcome.candidate;
    const StagesTaken kept = take_stages_of(one, {}, false, nullptr);
    sum_up_stages(kept, cluster_, options_.pins, outcome);
    outcome.roomy_seconds = outcome.seconds;
    outcome.roomy_bytes = outcome.bytes();
    const std::vector<double> compute = compute_seconds_of(kept);
    bounds_.add(one, compute, false);
    outcome.least_seconds =
        std::max(outcome.least_seconds, least_seconds(bounds_.with_waiting(one, compute), sending_seconds(one)));
    if (outcome.bytes() <= memory_bytes_) return fitting_stages(outcome, kept, 0);
    return {[this, kept](Outcome& again) {
      const StagesTaken all = take_stages_of(again.candidate, {}, true, &kept);
      double share = 0;
      StagesTaken squeezed;
      while (again.bytes() > memory_bytes_ && share < 1) {
        share += kShareOfRecomputation;
        squeezed = between(kept, all, share);
        sum_up_stages(squeezed, cluster_, options_.pins, again);
      }
      again.recomputes = true;
      if (again.bytes() <= memory_bytes_) {
        bounds_.add(again.candidate, compute_seconds_of(squeezed), true);
        return fitting_stages(again, squeezed, share);
      }
      does_not_fit(again, "recomputation included");
      return Step();
    }};
  }
  // `share`: of all that can be recomputed.
  Step fitting_stages(Outcome& outcome, const StagesTaken& stages, double share) {
    outcome.verdict = Verdict::kPlanned;
    const double least = least_seconds_of(stages, options_.pins, outcome.candidate);
    outcome.least_seconds = std::max(outcome.least_seconds, least_seconds(least, sending_seconds(outcome.candidate)));
    if (!options_.pins.base.overlap_bytes || outcome.exposed_seconds == 0) return {};
    return {[this, share, blocks = stages](Outcome& blocking) {
      hide_exchanges(blocking, [&](int64_t parts) {
        Outcome beside = blocking;
        StagesTaken stages = take_stages_of(beside.candidate, parts, false, &blocks);
        if (share > 0) stages = between(stages, take_stages_of(beside.candidate, parts, true, &blocks), share);
        sum_up_stages(stages, cluster_, options_.pins, beside);
        beside.seconds = std::max(beside.seconds, beside.least_seconds);  // as of depths
        return beside;
      });
      return Step();
    }};
  }

  const SearchModel& model_;
  const Cluster cluster_;
  const SearchOptions& options_;
  uint64_t memory_bytes_ = 0;
  size_t planned_ = 0;
  double best_compute_seconds_ = 0;                                    // 0: not known yet
  std::map<std::pair<int64_t, bool>, std::optional<Graph>> captured_;  // by layers, and whether it is then cut
  std::map<int64_t, WholeStep> wholes_;                                // by layers
  std::mutex mutex_;                                                   // of the next two
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int, int64_t, int64_t, size_t>, PartPlan> updates_;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int>, Context> contexts_;
  struct KeptCut {
    Candidate way;
    int64_t layers = 0;
    Context context = Context::kGather;
    std::shared_ptr<const BatchCut> cut;
    std::map<std::string, Sharding> known;  // of the parameters
  };
  std::deque<KeptCut> cuts_;
  SearchBounds bounds_;
  PartPlans plans_;
};

}  // namespace

SearchResult search(const SearchModel& model, const Cluster& cluster, const SearchOptions& options) {
  return Searcher(model, cluster, options).run();
}

}  // namespace stepc
