#include "plan/plan_graph.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_choice.h"
#include "memory/graph_memory.h"
#include "memory/graph_windows.h"
#include "ops/attention_operands.h"
#include "ops/op_def.h"
#include "passes/fusion/known_groups.h"
#include "plan/eager_peak.h"
#include "plan/overlap.h"
#include "plan/rank_graph.h"
#include "plan/simulate.h"

namespace stepc {

namespace {

constexpr int kBudgetAttempts = 6;

// How far a plan is above what it may take: a budget of bytes; or what eager took, so that what the program
// recomputes to save memory saves it here too. Kernels may want more workspace than eager's, and keep what those
// compute twice.
uint64_t excess_bytes(const Schedule& schedule, const MemoryBudget& budget, uint64_t eager_bytes) {
  const bool has_budget = budget.kind == MemoryBudget::Kind::kBytes;
  const uint64_t bytes = has_budget ? held_bytes(schedule, budget) : schedule.peak_bytes();
  const uint64_t most = has_budget ? budget.bytes : eager_bytes;
  return bytes - std::min(bytes, most);
}

// Of the order that the graph's nodes stand in, scratch memory apart.
uint64_t ordered_bytes(const Graph& graph) {
  const OrderProblem problem = graph_memory(graph, {.copied_views = graph_windows(graph).copied_views}).problem;
  return peak_bytes(problem, program_order(problem));
}

// Whether a fused loss takes more scratch memory than the logits that it does not hold. (On a GPU their gradients lie
// in their place.)
bool outweighs_logits(const Instruction& one, const Schedule& schedule) {
  if (one.kind != Instruction::Kind::kLoss || one.loss) return false;
  const Operand& hidden = schedule.operands[one.reads[0].index()];
  const Operand& weight = schedule.operands[one.reads[1].index()];
  const int64_t logits = hidden.sizes[0] * weight.sizes[0] * static_cast<int64_t>(size_of(hidden.dtype));
  const uint64_t workers = one.worker_scratch.bytes * static_cast<uint64_t>(schedule.threads - 1);
  return one.scratch.bytes + workers >= static_cast<uint64_t>(logits);
}

// A budget counts the program's own memory, recomputation only what the step adds to it.
std::optional<RecomputeOptions> recompute_options(const Graph& graph, const PlanGraphOptions& asked) {
  const MemoryBudget& budget = asked.budget;
  if (budget.kind == MemoryBudget::Kind::kNone) return std::nullopt;
  RecomputeOptions options;
  options.looks = asked.looks;
  if (budget.kind == MemoryBudget::Kind::kAuto) {
    options.target = asked.target;
    return options;
  }
  const uint64_t program = bytes_of_inputs(graph);
  options.budget_bytes = budget.bytes - std::min(budget.bytes, program);
  options.more_layers = budget.more_layers;
  return options;
}

// The passes in three parts: what is the same for all attempts to meet a budget, what each does anew, and what only
// those do that recompute something else than the one before.
class Passes {
 public:
  // `runs`: those of attempts before.
  explicit Passes(RunOptions options, std::vector<PassRun> runs = {})
      : options_(std::move(options)), runs_(std::move(runs)) {}

  Graph before(const Graph& captured, const std::vector<std::string>& without = {}) {
    RunOptions options = options_;
    for (const std::vector<std::string>* names : {&kRecompute, &kFuse, &without})
      options.without.insert(options.without.end(), names->begin(), names->end());
    return run(captured, options);
  }
  Graph recomputed(const Graph& core, const std::optional<RecomputeOptions>& recompute) {
    RunOptions options = options_;
    options.only = kRecompute;
    options.settings.recompute = recompute;
    if (recompute) options.settings.recompute->groups = options.settings.groups;
    return run(core, options);
  }
  Graph fused(Graph recomputed) {
    RunOptions options = options_;
    options.only = kFuse;
    return run(std::move(recomputed), options);
  }
  [[nodiscard]] const std::vector<PassRun>& runs() const { return runs_; }

 private:
  Graph run(Graph graph, const RunOptions& options) {
    RunResult result = run_passes(std::move(graph), options);
    runs_.insert(runs_.end(), result.runs.begin(), result.runs.end());
    return std::move(result.graph);
  }

  static const std::vector<std::string> kRecompute, kFuse;

  RunOptions options_;
  std::vector<PassRun> runs_;
};
const std::vector<std::string> Passes::kRecompute = {"recompute"};
const std::vector<std::string> Passes::kFuse = {"merge_collectives", "cut_exchanges", "split_collectives",
                                                "sum_matmuls",       "fuse",          "order"};

// What may be kept gathered, the most first: along all axes that gather in both passes, then without parameters, then
// parameters alone.
std::vector<std::vector<std::string>> what_may_be_kept(const Strategy& strategy) {
  std::vector<std::string> activations, parameters;
  if (strategy.mesh.find("cp")) activations.emplace_back("cp");
  if (strategy.mesh.find("tp") && strategy.sequence_parallel) activations.emplace_back("tp");
  if (strategy.zero >= 2)
    for (Axis axis : state_axes(strategy.mesh)) parameters.push_back(strategy.mesh.axes[axis].name);
  std::vector<std::string> all = activations;
  all.insert(all.end(), parameters.begin(), parameters.end());
  std::vector<std::vector<std::string>> out = {all, activations, parameters};
  std::erase_if(out, [](const auto& axes) { return axes.empty(); });
  if (out.size() == 2) out.pop_back();  // of one kind: twice the same
  return out;
}

// A rank's plan that keeps what it gathers, recomputes nothing and yet fits the budget; nullopt where none does.
// `fitting`: the plan that keeps nothing, which fits: where that one does not, none does.
std::optional<PlannedGraph> plan_that_keeps(const Graph& captured, const PlanGraphOptions& options,
                                            const RunOptions& run, const PlannedGraph& fitting) {
  if (options.budget.kind != MemoryBudget::Kind::kBytes) return std::nullopt;
  std::vector<PassRun> runs = fitting.passes;
  for (std::vector<std::string>& axes : what_may_be_kept(run.settings.strategy)) {
    RunOptions keeping = run;
    keeping.settings.strategy.keeps = std::move(axes);
    Passes passes(std::move(keeping), std::move(runs));
    PlannedGraph planned = fitting;
    planned.graph = passes.fused(passes.before(captured));
    verify_stage(planned.graph, Stage::kFused);
    planned.plan = options.schedule(planned.graph, planned.options);
    runs = passes.runs();
    planned.passes = runs;
    if (excess_bytes(planned.plan.schedule, options.budget, UINT64_MAX) == 0) return planned;
  }
  return std::nullopt;
}

PlannedGraph plan_within(const Graph& captured, const Trace* trace, const PlanGraphOptions& options) {
  const bool is_part = !options.passes.settings.strategy.mesh.axes.empty();
  const uint64_t eager_bytes = trace == nullptr || is_part ? UINT64_MAX : eager_peak_bytes(*trace);
  const auto excess_of = [&](const PlannedGraph& one) {
    return excess_bytes(one.plan.schedule, options.budget, eager_bytes);
  };
  const auto held = [&](const PlannedGraph& one) { return held_bytes(one.plan.schedule, options.budget); };
  RunOptions run = options.passes;
  run.settings.matmuls = matmul_rule(options.target.features);
  set_machine(run.settings, options.target.features);
  if (!run.settings.groups) run.settings.groups = std::make_shared<KnownGroups>();
  PlannedGraph planned;
  planned.options.features = options.target.features;
  planned.options.threads = options.target.threads;
  planned.options.trace = trace;
  planned.options.memory = options.memory;
  Passes passes(run);
  const Graph core = passes.before(captured);  // of a mesh: a rank's, whose inputs the budget counts
  std::optional<RecomputeOptions> recompute = recompute_options(core, options);
  const bool fuses = std::ranges::count(run.without, "fuse") == 0;
  std::optional<PlannedGraph> best;
  Graph recomputed;  // by the attempt before
  for (int attempt = 1;; ++attempt) {
    Graph now = passes.recomputed(core, recompute);
    if (attempt == 1 || now != recomputed) {
      recomputed = std::move(now);
      planned.graph = passes.fused(recomputed);
      verify_stage(planned.graph, Stage::kFused);
      planned.plan = options.schedule(planned.graph, planned.options);
    }
    planned.passes = passes.runs();
    if (!best || held(planned) < held(*best)) best = planned;
    const uint64_t excess = excess_of(planned);
    if (attempt == 1 && excess == 0 && recomputed.nodes.size() == core.nodes.size())
      if (auto kept = plan_that_keeps(captured, options, run, planned)) return std::move(*kept);
    if (excess == 0) return std::move(*best);
    if (attempt == kBudgetAttempts) break;
    // recompute knows nothing of scratch memory and of what kernels cannot write in place: it is asked for less then.
    if (!recompute) recompute.emplace();
    const uint64_t reached = ordered_bytes(planned.graph);
    if (!recompute->budget_bytes) recompute->budget_bytes = reached;
    // Of the choices that there are it took the lowest: asked for less, it would take the same. It counts what kernels
    // of several nodes hold, so without fusion the nodes may take more than the choice was made for.
    if ((fuses && reached > *recompute->budget_bytes) || *recompute->budget_bytes == 0) break;
    *recompute->budget_bytes -= std::min(excess, *recompute->budget_bytes);
  }
  // Of few tokens. Where the peak lies elsewhere, nothing is won.
  if (std::ranges::any_of(best->plan.schedule.instructions, [&](const Instruction& one) {
        return one.op == best->plan.memory.peak_op && outweighs_logits(one, best->plan.schedule);
      })) {
    PlannedGraph with_logits = *best;
    with_logits.graph =
        passes.fused(passes.recomputed(passes.before(captured, {"fuse_losses"}), recompute_options(core, options)));
    with_logits.passes = passes.runs();
    verify_stage(with_logits.graph, Stage::kFused);
    with_logits.plan = options.schedule(with_logits.graph, with_logits.options);
    if (held(with_logits) < held(*best)) best = std::move(with_logits);
    if (excess_of(*best) == 0) return std::move(*best);
  }
  // What activations do not give, matmuls may: the library's pack nothing, and are slower.
  PlannedGraph packing_nothing = *best;
  packing_nothing.options.most_scratch_bytes = 0;
  packing_nothing.plan = options.schedule(packing_nothing.graph, packing_nothing.options);
  const bool is_mostly_scratch = 2 * excess_of(packing_nothing) <= excess_of(*best);
  return is_mostly_scratch ? std::move(packing_nothing) : std::move(*best);
}

PlanCost cost_of(const PlannedGraph& planned, const Target& target) {
  const Schedule& schedule = planned.plan.schedule;
  return {simulate(schedule, target).seconds, schedule.peak_bytes()};
}

uint64_t over_budget(const PlannedGraph& planned, const PlanGraphOptions& options) {
  return excess_bytes(planned.plan.schedule, options.budget, UINT64_MAX);
}

// Without a budget, exchanges that go on beside other work may lift the peak by such a part.
constexpr uint64_t kPartForOverlap = 8;
constexpr int kOverlapAttempts = 3;  // to leave room for them in a budget

bool has_parts(const PlannedGraph& planned) {
  return std::ranges::any_of(planned.passes,
                             [](const PassRun& run) { return run.name == "cut_exchanges" && run.changed; });
}

// The plan whose exchanges go on beside the computation, where that takes less time than `blocking`, the same step with
// exchanges that block, and no more memory than it may. Exchanges and their matmuls are cut into as many parts as gain
// time; or into those that are given, whether or not they gain any: without `blocking`.
std::optional<PlannedGraph> plan_overlapped(const Graph& captured, const Trace* trace, const PlanGraphOptions& options,
                                            std::optional<PlannedGraph> blocking) {
  const bool has_budget = options.budget.kind == MemoryBudget::Kind::kBytes;
  uint64_t most = has_budget ? options.budget.bytes : UINT64_MAX;
  if (blocking) {
    const uint64_t held = held_bytes(blocking->plan.schedule, options.budget);
    const uint64_t peak = blocking->plan.schedule.peak_bytes();
    most = has_budget ? std::max(held, most) : held + peak / kPartForOverlap;
  }
  std::optional<PlannedGraph> best = std::move(blocking);
  // Whether there is a faster plan in so many parts; nullopt: nothing is cut.
  const auto improves_in = [&](int64_t parts) -> std::optional<bool> {
    PlanGraphOptions within = options;
    within.passes.settings.exchange_parts = parts;
    bool is_better = false;
    Graph tried;
    for (int attempt = 0; attempt < kOverlapAttempts; ++attempt) {
      const PlannedGraph planned = plan_within(captured, trace, within);
      if (parts > 1 && !has_parts(planned)) return std::nullopt;
      if (planned.graph == tried) break;  // a smaller budget changes nothing
      tried = planned.graph;
      Overlapped found = overlapped(planned, within, most);
      if (found.planned &&
          (!best || cost_of(*found.planned, options.target).seconds < cost_of(*best, options.target).seconds)) {
        best = *std::move(found.planned);
        is_better = true;
      }
      // Recomputation fills its budget: it leaves room for what is in flight, which may cost less than exchanges that
      // block.
      if (!has_budget || found.missing_bytes == 0 || found.missing_bytes >= within.budget.bytes) break;
      within.budget.bytes = std::min(within.budget.bytes, most) - found.missing_bytes;
    }
    return is_better;
  };
  improves_in(options.exchange_parts.value_or(1));
  if (!options.exchange_parts && best->graph.mesh.find("tp"))
    for (int64_t parts = 2; parts <= kMostExchangeParts; parts *= 2) {
      const Timeline timeline = simulate(best->plan.schedule, options.target);
      if (timeline.exposed_seconds < kLeastExposed * timeline.seconds || !improves_in(parts).value_or(false)) break;
    }
  return best;
}

// What is sent together takes memory together: where that is too much, each collective goes alone. Of equal peaks the
// plan without the budget wins: scratch memory may hide what recomputation saves.
PlannedGraph plan_by_budget(const Graph& captured, const Trace* trace, PlanGraphOptions options) {
  const std::optional<uint64_t> overlap_bytes =
      std::exchange(options.passes.settings.strategy.overlap_bytes, std::nullopt);
  const auto excess = [&](const PlannedGraph& one) { return over_budget(one, options); };
  PlanGraphOptions split = options;
  split.passes.settings.strategy.overlap_bytes = overlap_bytes;
  const bool overlaps = overlap_bytes && !options.passes.settings.strategy.mesh.axes.empty();
  std::optional<PlannedGraph> beside;
  if (overlaps && options.exchange_parts) beside = plan_overlapped(captured, trace, split, std::nullopt);
  PlannedGraph planned = beside ? std::move(*beside) : plan_within(captured, trace, options);
  if (overlaps && !options.exchange_parts) planned = *plan_overlapped(captured, trace, split, std::move(planned));
  if (options.passes.settings.strategy.bucket_bytes > 0 && !planned.graph.mesh.axes.empty() && excess(planned) > 0) {
    PlanGraphOptions one_by_one = options;
    one_by_one.passes.settings.strategy.bucket_bytes = 0;
    if (PlannedGraph other = plan_within(captured, trace, one_by_one); excess(other) < excess(planned))
      planned = std::move(other);
  }
  if (options.budget.kind != MemoryBudget::Kind::kAuto) return planned;
  PlanGraphOptions no_budget = options;
  no_budget.budget = {};
  PlannedGraph other = plan_within(captured, trace, no_budget);
  const PlanCost without = cost_of(other, options.target);
  if (without.peak_bytes <= planned.plan.schedule.peak_bytes()) planned = std::move(other);
  planned.weighed = {cost_of(planned, options.target), without};
  return planned;
}

// The step with each way of attention that it can go; of those within the budget the fastest, else the smallest.
// Gathered keys and values send what a ring sends and take more memory and, of causal attention, twice the work.
PlannedGraph plan_by_price(const Graph& captured, const Trace* trace, PlanGraphOptions options) {
  Context& context = options.passes.settings.strategy.context;
  std::optional<PlannedGraph> best;
  std::pair<uint64_t, double> least;
  const bool is_split = options.passes.settings.strategy.mesh.find("cp").has_value();
  if (is_split && std::ranges::any_of(captured.nodes, [](const Node& node) { return attends(node); }))
    for (const Context way : {Context::kHeads, Context::kRing}) {
      context = way;
      try {
        PlannedGraph planned = plan_by_budget(captured, trace, options);
        planned.context = way;
        const std::pair<uint64_t, double> price = {over_budget(planned, options),
                                                   cost_of(planned, options.target).seconds};
        if (best && price >= least) continue;
        best = std::move(planned);
        least = price;
      } catch (const UnfitContext&) {
      }
    }
  if (best) return std::move(*best);
  context = Context::kGather;
  return plan_by_budget(captured, trace, options);
}

// The work of attention over documents of so many tokens: its row counts rows of one document.
void count_documents(Schedule& schedule, double document_tokens) {
  for (Instruction& one : schedule.instructions) {
    if (one.aten || !attends(one.op)) continue;
    const AttentionPlaces at = attention_places(one.op);
    if (!at.has_documents(one.reads.size())) continue;
    const auto keys = static_cast<double>(schedule.operands[one.reads[at.q + 1].index()].sizes[2]);
    const double share = std::min(1.0, document_tokens / keys);
    one.work.flops *= share;
    one.work.narrow_flops *= share;
  }
}

PlanGraphOptions with_documents(PlanGraphOptions options) {
  if (!options.document_tokens) return options;
  options.schedule = [tokens = *options.document_tokens, schedule = options.schedule](const Graph& graph,
                                                                                      const GraphScheduleOptions& how) {
    GraphSchedule plan = schedule(graph, how);
    count_documents(plan.schedule, tokens);
    return plan;
  };
  return options;
}

}  // namespace

std::string_view weighed_by_rates(const Strategy& strategy, const MemoryBudget& budget) {
  if (strategy.overlap_bytes) return "overlap = true";
  if (budget.kind == MemoryBudget::Kind::kAuto) return "the memory budget \"auto\"";
  if (strategy.mesh.find("cp") && strategy.context == Context::kByPrice) return "context = \"auto\"";
  return {};
}

PlannedGraph plan_graph(const Graph& captured, const Trace* trace, const PlanGraphOptions& given) {
  const PlanGraphOptions options = with_documents(given);
  const Strategy& strategy = options.passes.settings.strategy;
  if (strategy.context == Context::kByPrice) return plan_by_price(captured, trace, options);
  PlannedGraph planned = plan_by_budget(captured, trace, options);
  planned.context = strategy.context;
  return planned;
}

void leave_out_what_is_done(RunOptions& passes) {
  for (const char* const pass : {"check_indices", "propagate_shardings", "fp8", "partition"})
    passes.without.emplace_back(pass);
}

}  // namespace stepc
