// irtool: runs passes on the text of a Graph or a Trace, and plans it, the way to debug, test and report one.
//
//   irtool step.trace                             the step as a Graph
//   irtool --pass simplify,dead_code step.graph   those passes alone
//   irtool --all --verify --times step.trace      the whole pipeline
//   irtool --all --matmuls bf16 step.trace       as on a machine whose blocked kernel takes bf16
//   irtool --schedule --target big.toml step.trace      its Schedule on a machine that big.toml describes
//   irtool --schedule --exact step.trace          the recorded calls' Schedule
//   irtool --all --mesh dp_shard=2,tp=2 step.trace     one rank's step, with its collectives
//   irtool --shardings --mesh tp=2 step.trace     how every value lies on the ranks, and why
//   irtool --communication --whole --mesh tp=2 step.trace      what one rank sends; which matmuls no axis splits
//   irtool --simulate step.trace                  what its Schedule will take, without running it; or a Schedule's text
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "cost/host_features.h"
#include "cost/named_target.h"
#include "interp/interpret.h"
#include "interp/interpret_ranks.h"
#include "ops/communication.h"
#include "ops/op_def.h"
#include "passes/from_trace/functionalise.h"
#include "passes/partition/partition.h"
#include "passes/partition/shardings/sharding_report.h"
#include "passes/pass.h"
#include "plan/plan_graph.h"
#include "plan/simulate.h"
#include "plan/target_plan.h"
#include "schedule/verify_kernels.h"

namespace {

using namespace stepc;

constexpr uint64_t kMostText = uint64_t{1} << 32;

struct Arguments {
  std::string file;
  std::vector<std::string> passes, without, dump_after, matmuls;
  std::string target, budget = "none", context = "gather", fp8;
  bool schedule = false, exact = false, hash = false, simulate = false;
  std::string timeline;
  std::string mesh;
  std::vector<std::string> shard;
  std::optional<int> zero;
  std::optional<int64_t> exchange_parts;
  bool no_sequence_parallel = false, reduce_narrow = false, shardings = false, communication = false, whole = false,
       on_ranks = false;
  bool all = false, verify = false, times = false, opaque = false, ops = false, passes_page = false;
};

constexpr int64_t kMostRanksRun = 4096;

// What a text holds: a Graph, and where it is a Trace's the Trace.
struct Loaded {
  std::optional<Trace> trace;
  Graph graph;
};

Loaded load(const Arguments& arguments) {
  const std::string text = read_text(arguments.file, kMostText);
  Loaded loaded;
  if (text.starts_with("stepc.trace")) {
    loaded.trace = parse_trace(text);
    verify(*loaded.trace);
  }
  USER_CHECK(loaded.trace || !arguments.exact, "{}: --exact plans recorded calls; this is a Graph, give a Trace",
             arguments.file);
  if (!arguments.exact) {
    loaded.graph = loaded.trace ? functionalise(*loaded.trace) : parse_graph(text);
    verify_ops(loaded.graph);
  }
  return loaded;
}

// "*.q_proj.weight:0=tp,1=dp_shard".
ShardRule parse_shard_rule(const std::string& text) {
  ShardRule rule;
  const size_t colon = text.rfind(':');
  for (const std::string& part : split(colon == std::string::npos ? "" : text.substr(colon + 1), ',')) {
    const size_t equal = part.find('=');
    const std::string dim(trim(part.substr(0, equal)));
    USER_CHECK(equal != std::string::npos && !dim.empty() && dim.size() < 3 &&
                   dim.find_first_not_of("0123456789") == std::string::npos,
               "--shard '{}': write a parameter and what splits its dimensions, as in '*.q_proj.weight:0=tp'", text);
    const bool is_new = rule.dims.emplace(std::stoul(dim), trim(part.substr(equal + 1))).second;
    USER_CHECK(is_new, "--shard '{}' splits dimension {} twice; give it one axis", text, dim);
  }
  rule.pattern = text.substr(0, colon);
  return rule;
}

Strategy strategy_of(const Arguments& arguments) {
  Strategy strategy;
  strategy.mesh = parse_mesh(arguments.mesh);
  USER_CHECK(!strategy.mesh.find("pp"), "--mesh {}: irtool looks at one stage; leave out pp", arguments.mesh);
  strategy.zero = arguments.zero.value_or(strategy.mesh.find("dp_shard") ? 3 : 0);
  strategy.sequence_parallel = !arguments.no_sequence_parallel;
  strategy.context = parse_context(arguments.context);
  if (arguments.reduce_narrow) strategy.reduce = DType::kBF16;
  for (const std::string& rule : arguments.shard) strategy.rules.push_back(parse_shard_rule(rule));
  check(strategy);
  return strategy;
}

RunOptions options_of(const Arguments& arguments) {
  RunOptions options;
  options.settings.strategy = strategy_of(arguments);
  if (arguments.exchange_parts) {
    options.settings.strategy.overlap_bytes = kOverlapBytes;
    options.settings.exchange_parts = *arguments.exchange_parts;
  }
  options.settings.fp8 = fp8_recipe_from_name(arguments.fp8);
  options.verify = arguments.verify;
  options.only = arguments.passes;
  options.without = arguments.without;
  options.after = [&](std::string_view pass, const Graph& after) {
    for (const std::string& name : arguments.dump_after)
      if (name == pass) std::fprintf(stderr, "# after %s\n%s", name.c_str(), to_text(after).c_str());
  };
  return options;
}

RunResult run_passes_on(Graph graph, const Arguments& arguments, MatmulRule matmuls) {
  RunOptions options = options_of(arguments);
  options.settings.matmuls = matmuls;
  RunResult result = run_passes(std::move(graph), options);
  if (arguments.times) std::fputs(to_text(result.runs).c_str(), stderr);
  return result;
}

Target target_of(const std::string& file) {
  if (!file.empty()) return named_target(file);
  Target target;
  target.features = host_features();
  target.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return target;
}

// As engine/plan/compile.cpp does, but for workspaces that only a run of the call would tell: the rule stands for
// those.
Schedule schedule_of(Loaded loaded, const Arguments& arguments) {
  const Target target = target_of(arguments.target);
  if (arguments.exact) return plan_for_target(*loaded.trace, target, true).schedule;
  PlanGraphOptions options;
  options.target = target;
  options.budget = parse_memory_budget(arguments.budget);
  options.passes = options_of(arguments);
  PlannedGraph planned = plan_graph(loaded.graph, loaded.trace ? &*loaded.trace : nullptr, options);
  if (arguments.times) std::fputs(to_text(planned.passes).c_str(), stderr);
  return std::move(planned.plan.schedule);
}

constexpr std::string_view kScheduleHead = "stepc.schedule ";

// Of a Schedule's own text, or of the Schedule that a step will have.
int print_timeline(const Arguments& arguments) {
  const std::string text = read_text(arguments.file, kMostText);
  const bool is_schedule = text.starts_with(kScheduleHead);
  const Schedule schedule = is_schedule ? parse_schedule(text) : schedule_of(load(arguments), arguments);
  try {
    verify(schedule);
    verify_kernels(schedule);
  } catch (const InternalError& error) {
    if (!is_schedule) throw;
    user_error("{}: no Schedule that can run: {}", arguments.file, error.what());
  }
  const Timeline timeline = simulate(schedule, target_of(arguments.target));
  if (!arguments.timeline.empty())
    write_file_synced(arguments.timeline, to_trace_events(schedule, timeline), system_files());
  std::string report = to_text(timeline);
  if (const std::vector<Communication> sent = communication_of(schedule, timeline); !sent.empty())
    report += to_text(sent, schedule.mesh, str("each of {} ranks sends", schedule.mesh.ranks()));
  return std::fputs(report.c_str(), stdout);
}

// The passes in front of propagate_shardings alone, or up to and with partition.
Graph run_until(Graph graph, const Arguments& arguments, std::string_view end) {
  RunOptions options = options_of(arguments);
  bool is_behind = false;
  for (const Pass& pass : pass_table()) {
    is_behind |= pass.name == end;
    if (is_behind) options.without.emplace_back(pass.name);
  }
  return run_passes(std::move(graph), options).graph;
}

// What is asked of a step on a mesh beside its text.
void print_partition(const Graph& captured, const Arguments& arguments) {
  const Strategy strategy = strategy_of(arguments);
  std::string text;
  if (arguments.shardings || arguments.whole) {
    const ShardedStep step = propagate_shardings(run_until(captured, arguments, "propagate_shardings"), strategy);
    if (arguments.shardings) text += shardings_text(step);
    if (arguments.whole) text += to_text(whole_work(step), step);
  }
  if (arguments.communication) {
    const Graph local = run_until(captured, arguments, "recompute");
    text += to_text(communication_of(local), strategy.mesh, "one rank sends") + to_text(padded_inputs(local));
  }
  if (arguments.on_ranks) {
    USER_CHECK(strategy.mesh.ranks() <= kMostRanksRun,
               "--on-ranks runs every rank on this machine, and --mesh {} has {}; {} can be run", arguments.mesh,
               strategy.mesh.ranks(), kMostRanksRun);
    const bool in_f64 = !reads_bits(captured);
    const Graph exact = in_f64 ? in_double(captured) : captured;
    const Graph whole = run_until(exact, arguments, "propagate_shardings");
    const double error = largest_error_on_ranks(whole, run_until(exact, arguments, "recompute"), 1);
    text += str("{} ranks in {}: the largest error of an output is {:.1e}\n", strategy.mesh.ranks(),
                in_f64 ? "float64" : "the step's own dtypes, whose bits it reads", error);
  }
  std::fputs(text.c_str(), stdout);
}

int print_schedule(Loaded loaded, const Arguments& arguments) {
  const Schedule schedule = schedule_of(std::move(loaded), arguments);
  if (arguments.verify) verify(schedule);
  const std::string text = arguments.hash ? hash_of(schedule) + "\n" : to_text(schedule);
  return std::fputs(text.c_str(), stdout);
}

void run(const Arguments& arguments) {
  if (arguments.ops) return (void)std::fputs(ops_page().c_str(), stdout);
  if (arguments.passes_page) return (void)std::fputs(passes_page().c_str(), stdout);
  USER_CHECK(!arguments.file.empty(), "no file is given; see irtool --help");
  if (arguments.simulate) return (void)print_timeline(arguments);
  Loaded loaded = load(arguments);
  if (arguments.schedule) return (void)print_schedule(std::move(loaded), arguments);
  Graph graph = std::move(loaded.graph);
  if (arguments.shardings || arguments.communication || arguments.whole || arguments.on_ranks)
    return print_partition(graph, arguments);
  if (arguments.all || !arguments.passes.empty()) {
    MatmulRule matmuls;
    for (const std::string& type : arguments.matmuls) {
      matmuls.bf16 |= type == "bf16";
      matmuls.f32 |= type == "f32";
    }
    graph = run_passes_on(std::move(graph), arguments, matmuls).graph;
  }
  if (!arguments.opaque) return (void)std::fputs(to_text(graph).c_str(), stdout);
  std::set<std::string> names;
  for (const Node& node : graph.nodes)
    if (node.aten) names.insert(node.op);
  for (const std::string& name : names) std::puts(name.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs passes on the text of a Graph or a Trace, and plans it");
  app.add_option("file", arguments.file, "a Graph's or a Trace's text");
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* what) {
    return app.add_option(name, values, what)->delimiter(',')->allow_extra_args(false);
  };
  CLI::Option* passes = list("--pass", arguments.passes, "passes to run, in this order");
  CLI::Option* all = app.add_flag("--all", arguments.all, "run the whole pipeline");
  list("--without", arguments.without, "passes to leave out");
  CLI::Option* matmuls =
      list("--matmuls", arguments.matmuls, "matmuls of these types run on the blocked kernel: bf16, f32")
          ->check(CLI::IsMember({"bf16", "f32"}));
  list("--dump-after", arguments.dump_after, "print the Graph after these passes to stderr");
  app.add_flag("--verify", arguments.verify, "verify after every pass, and the Schedule");
  app.add_flag("--times", arguments.times, "print a line a pass to stderr");
  CLI::Option* opaque =
      app.add_flag("--opaque", arguments.opaque, "print the ATen calls that stay opaque instead of the Graph");
  CLI::Option* schedule =
      app.add_flag("--schedule", arguments.schedule,
                   "run the whole pipeline and print the Schedule. Workspaces of ATen calls that only a run would tell "
                   "are taken by rule");
  CLI::Option* simulate =
      app.add_flag("--simulate", arguments.simulate,
                   "what the Schedule will take on the target, by class of work, without running it; the file may be "
                   "a Schedule's text too")
          ->excludes(schedule);
  for (CLI::Option* of_a_graph : {passes, all, matmuls, opaque}) {
    schedule->excludes(of_a_graph);
    simulate->excludes(of_a_graph);
  }
  app.add_option("--timeline", arguments.timeline, "write what is predicted as a trace for ui.perfetto.dev")
      ->needs(simulate);
  app.add_option("--target", arguments.target,
                 "the machine that the Schedule is for: a100, h100, h100-96, h200, b200, gb200, a800, h800 or one as "
                 "TOML (cost/target.h). "
                 "Default: this one, by its CPU and its "
                 "count of cores; with AVX-512 LibTorch's micro-kernels are taken to be there");
  app.add_option("--budget", arguments.budget,
                 "what the Schedule may take of memory: none (as much as eager took), auto, or a size such as 12GiB");
  app.add_option("--fp8", arguments.fp8, "linear layers multiply in float8, scaled so: tensorwise or rowwise")
      ->check(CLI::IsMember({"tensorwise", "rowwise"}));
  app.add_flag("--exact", arguments.exact, "the Schedule of a Trace's recorded calls, as in exact mode");
  app.add_flag("--hash", arguments.hash, "print the Schedule's 16 digits alone")->needs(schedule);
  CLI::Option* mesh =
      app.add_option("--mesh", arguments.mesh,
                     "devices that the step is spread over, as dp_shard=2,tp=2: --all prints the step of one of them. "
                     "Axes: dp_replicate, dp_shard, cp, tp");
  app.add_option("--zero", arguments.zero,
                 "what is split over dp_shard beside the batch: 0 nothing, 1 optimizer state, 2 gradients too, 3 "
                 "parameters too. Default: 3")
      ->check(CLI::Range(0, 3))
      ->needs(mesh);
  app.add_flag("--no-sequence-parallel", arguments.no_sequence_parallel,
               "what lies between the matmuls of tensor parallelism is whole on every rank along tp")
      ->needs(mesh);
  app.add_option("--context", arguments.context,
                 "where the sequence is split over cp: gather keys and values, exchange heads, or a ring")
      ->check(CLI::IsMember({"gather", "heads", "ring"}))
      ->needs(mesh);
  app.add_flag("--reduce-bfloat16", arguments.reduce_narrow, "float32 gradients are sent as bfloat16")->needs(mesh);
  app.add_option("--exchange-parts", arguments.exchange_parts,
                 "exchanges run beside the computation, and those of tp are cut into so many parts with their matmuls")
      ->check(CLI::Range(1, 64));
  app.add_option("--shard", arguments.shard,
                 "parameters that match ('*' is any text) and what splits their dimensions: '*.q_proj.weight:0=tp'; "
                 "may be given several times")
      ->allow_extra_args(false)
      ->needs(mesh);
  const std::pair<const char*, std::pair<bool*, const char*>> reports[] = {
      {"--shardings", {&arguments.shardings, "print how every value lies on the mesh, and why it does"}},
      {"--communication", {&arguments.communication, "print what one rank sends in a step, and what is padded"}},
      {"--whole",
       {&arguments.whole, "print the matmuls, attention and opaque calls that no axis of a kind splits, and why"}},
      {"--on-ranks",
       {&arguments.on_ranks, "run one device's step and all ranks' on random numbers, in float64, and compare"}}};
  for (const auto& [name, report] : reports) {
    CLI::Option* option = app.add_flag(name, *report.first, report.second)->needs(mesh);
    for (CLI::Option* other : {passes, all, opaque, schedule, simulate}) option->excludes(other);
  }
  app.add_flag("--ops", arguments.ops, "print docs/ops.md");
  app.add_flag("--passes", arguments.passes_page, "print docs/passes.md");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "irtool: %s; see irtool --help\n", error.what());
    return 2;
  }
  try {
    USER_CHECK(app.count("--mesh") == 0 || !trim(arguments.mesh).empty(), "--mesh is empty; write dp_shard=2,tp=4");
    for (const char* option : {"--target", "--budget", "--exact"})
      USER_CHECK(arguments.schedule || arguments.simulate || app.count(option) == 0,
                 "{} requires --schedule or --simulate", option);
    USER_CHECK(arguments.mesh.empty() || arguments.all || arguments.schedule || arguments.simulate ||
                   arguments.shardings || arguments.communication || arguments.whole || arguments.on_ranks,
               "--mesh spreads a whole step: give --all, --schedule, --shardings, --communication, --whole or "
               "--on-ranks with it");
    USER_CHECK(arguments.mesh.empty() || !arguments.exact,
               "--exact plans recorded calls, which run on one device: leave out --mesh");
    run(arguments);
  } catch (const UserError& error) {
    std::fprintf(stderr, "irtool: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "irtool: %s\n", error.what());
    return 1;
  }
  return 0;
}
