// The passes in their order, and the runner.
#include <algorithm>
#include <chrono>
#include <unordered_set>

#include "base/check.h"
#include "loops/group_key.h"
#include "loops/lower/epilogue.h"
#include "loops/lower/lower.h"
#include "ops/op_def.h"
#include "passes/check_indices.h"
#include "passes/cut_exchanges.h"
#include "passes/fusion/fuse.h"
#include "passes/fusion/fuse_losses.h"
#include "passes/fusion/sum_matmuls.h"
#include "passes/merge_collectives.h"
#include "passes/order.h"
#include "passes/partition/partition.h"
#include "passes/pass.h"
#include "passes/rewrite/canonicalise.h"
#include "passes/rewrite/common_subexpressions.h"
#include "passes/rewrite/dead_code.h"
#include "passes/rewrite/decompose.h"
#include "passes/rewrite/find_documents.h"
#include "passes/rewrite/fold_constants.h"
#include "passes/rewrite/simplify.h"
#include "passes/split_collectives.h"

namespace stepc {

namespace {
constexpr Stage kCaptured = Stage::kCaptured;
constexpr Stage kCore = Stage::kCore;
constexpr Stage kFused = Stage::kFused;
template <Graph (*kRun)(Graph)>
Graph plain(Graph graph, const PassSettings&) {
  return kRun(std::move(graph));
}
Graph recompute_within(Graph graph, const PassSettings& settings) {
  if (!settings.recompute) return graph;
  RecomputeOptions options = *settings.recompute;
  options.matmuls = settings.matmuls;
  return recompute(std::move(graph), options).graph;
}
Graph fp8_for(Graph graph, const PassSettings& settings) {
  return settings.fp8 ? fp8(std::move(graph), *settings.fp8) : graph;
}
bool is_spread(const PassSettings& settings) { return !settings.strategy.mesh.axes.empty(); }
// Ranks send each other float8 and not what it is decoded to: a scaled matmul is one node until they are made.
Graph decompose_for(Graph graph, const PassSettings& settings) {
  return decompose(std::move(graph), settings.has_fp8 || is_spread(settings));
}
// Over the classes of a split loss no rank has all logits of a token.
Graph fuse_losses_for(Graph graph, const PassSettings& settings) {
  return settings.strategy.mesh.find("tp") ? graph : fuse_losses(std::move(graph));
}
Graph propagate_for(Graph graph, const PassSettings& settings) {
  if (!is_spread(settings)) return graph;
  return propagate_shardings(graph, settings.strategy).graph;
}
Graph partition_for(Graph graph, const PassSettings& settings) {
  if (!is_spread(settings)) return graph;
  return dead_code(common_subexpressions(simplify(decompose(partition(graph), settings.has_fp8))));
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): a row's function
Graph find_documents_for(Graph graph, const PassSettings& settings) {
  return find_documents(graph, settings.is_for_gpu);
}
Graph merge_collectives_for(Graph graph, const PassSettings& settings) {
  return merge_collectives(std::move(graph), settings.strategy.bucket_bytes, settings.strategy.bucket_share);
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): a row's function
Graph cut_exchanges_for(Graph graph, const PassSettings& settings) {
  const std::optional<uint64_t> least = settings.strategy.overlap_bytes;
  return least ? cut_exchanges(graph, settings.exchange_parts, *least) : graph;
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): a row's function
Graph split_collectives_for(Graph graph, const PassSettings& settings) {
  const std::optional<uint64_t> least = settings.strategy.overlap_bytes;
  return least ? split_collectives(graph, *least, settings.is_for_gpu) : graph;
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): a row's function
Graph sum_matmuls_for(Graph graph, const PassSettings& settings) {
  return settings.is_for_gpu ? sum_matmuls(graph) : graph;
}
Graph fuse_for(Graph graph, const PassSettings& settings) {
  KnownGroups none;
  return fuse(std::move(graph), settings.matmuls, settings.groups ? *settings.groups : none, nullptr,
              settings.is_for_gpu);
}

constexpr Pass kPasses[] = {
    {"fold_constants", plain<fold_constants>, kCaptured, kCaptured, "computes what follows from single values",
     "first: the rules after it look for constants"},
    {"canonicalise", plain<canonicalise>, kCaptured, kCaptured, "writes each thing in one way",
     "before simplify and common_subexpressions, which then know one way each"},
    {"fp8", fp8_for, kCaptured, kCaptured, "multiplies in float8 in linear layers, where the run asks for it",
     "before fuse_losses: with and without it the same matmuls are chosen; before decompose, which makes what a "
     "machine "
     "without float8 has of it"},
    {"fuse_losses", fuse_losses_for, kCaptured, kCaptured,
     "makes a linear layer and its cross-entropy one op without logits",
     "before decompose, while losses and their gradients are one node each"},
    {"decompose", decompose_for, kCaptured, kCore,
     "replaces composites by core ops, but those with a kernel of their own",
     "before the clean-up, which then sees what composites have in common"},
    {"simplify", plain<simplify>, kCaptured, kCaptured, "removes casts, views and arithmetic that change nothing",
     "after canonicalise; brings transposes into the matmuls that can read them"},
    {"common_subexpressions", plain<common_subexpressions>, kCaptured, kCaptured,
     "computes equal things once, but what the program recomputes to save memory",
     "after the rules that make things equal"},
    {"dead_code", plain<dead_code>, kCaptured, kCaptured, "drops what no output needs",
     "after everything that leaves nodes behind"},
    {"check_indices", plain<check_indices>, kCaptured, kCaptured,
     "guards that what the program gives as indices is in range",
     "after dead_code, which leaves the indices that count; before fuse, which makes it one kernel"},
    {"propagate_shardings", propagate_for, kCore, kCore, "says how every tensor lies on the ranks of a mesh",
     "after decompose, which must see whole sizes, and the clean-up; before all that looks at a rank's"},
    {"partition", partition_for, kCore, kCore, "makes of the whole step one rank's, with its collectives",
     "right after propagate_shardings; what it leaves to tidy it tidies itself"},
    {"find_documents", find_documents_for, kCore, kCore,
     "gives attention the documents of packed rows instead of a mask of all pairs of tokens",
     "after partition, which cuts masks; before recompute, which would count the masks' memory"},
    {"recompute", recompute_within, kCore, kCore,
     "recomputes activations in the backward pass, where a budget asks for it",
     "after common_subexpressions, so each thing is kept once, and before fuse, which makes most of it free"},
    {"merge_collectives", merge_collectives_for, kCore, kCore,
     "puts neighbouring collectives of one kind together, a bucket for each exchange",
     "after recompute, which moves what they read; before fuse, whose kernels must not go around an exchange"},
    {"cut_exchanges", cut_exchanges_for, kCore, kCore,
     "cuts the exchanges of tensor parallelism and their matmuls into parts, one beside another",
     "after merge_collectives, which would put the parts together; before split_collectives, which begins each"},
    {"split_collectives", split_collectives_for, kCore, kCore,
     "makes of each exchange its beginning and a wait, so that other work runs between",
     "after merge_collectives and cut_exchanges, whose buckets and parts begin at once; before fuse, which puts the "
     "sums of parts into kernels"},
    {"sum_matmuls", sum_matmuls_for, kCore, kCore,
     "on a GPU, gives matmuls the sums that the library computes with them: of gradients, of a bias",
     "after split_collectives, whose exchanges may stand between; before fuse, which makes kernels of the other sums"},
    {"fuse", fuse_for, kCore, kFused,
     "puts what can be one kernel, or one call for matmuls and what finishes them, into a group",
     "before order alone: groups stand in a row, which no other pass keeps up"},
    {"order", plain<order>, kFused, kFused, "puts nodes in the order that needs the least memory",
     "last: memory is planned for the kernels that there are"},
};
}  // namespace

std::string_view name_of(Stage stage) {
  constexpr std::string_view kNames[] = {"captured", "core", "fused"};
  return kNames[static_cast<size_t>(stage)];
}

namespace {
void verify_groups(const Graph& graph) {
  std::unordered_set<std::string> right;
  for (const GroupGraph& kernel : extract_groups(graph)) {
    if (kernel.outputs.empty()) continue;  // nothing needs it
    if (!right.insert(group_key(kernel.graph)).second) continue;
    const std::string problem =
        is_matmul_group(kernel.graph) ? why_no_epilogue(kernel.graph) : why_no_loops(kernel.graph);
    INTERNAL_CHECK(problem.empty(), "group {} is not one call: {}", kernel.group, problem);
  }
}
}  // namespace

namespace {
// The stage's ops and fields, in few words and fast: `who` asks for it.
void check_stage(const Graph& graph, Stage stage, std::string_view who) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    INTERNAL_CHECK(stage == Stage::kFused || !node.group, "{}: node {} {} is in group {} of a {} graph", who, n,
                   node.op, *node.group, name_of(stage));
    INTERNAL_CHECK(stage == Stage::kCaptured || node.aten || op_def(node.op).is_core(),
                   "{}: node {} {} is a composite in a {} graph", who, n, node.op, name_of(stage));
  }
}
}  // namespace

void verify_stage(const Graph& graph, Stage stage) {
  verify_ops(graph);
  check_stage(graph, stage, "verify");
  if (stage == Stage::kFused) verify_groups(graph);
}

std::span<const Pass> pass_table() { return kPasses; }

const Pass* find_pass(std::string_view name) {
  const auto found = std::ranges::find(kPasses, name, &Pass::name);
  return found == std::end(kPasses) ? nullptr : found;
}

RunResult run_passes(Graph graph, const RunOptions& options) {
  const auto named = [](const std::string& name) {
    if (const Pass* pass = find_pass(name)) return pass;
    std::vector<std::string> names;
    for (const Pass& known : kPasses) names.emplace_back(known.name);
    const auto near = nearest(name, names);
    user_error("no pass is named '{}'{}", name, near ? str("; did you mean '{}'?", *near) : "");
  };
  std::vector<const Pass*> passes;
  for (const std::string& name : options.only) passes.push_back(named(name));
  if (options.only.empty())
    for (const Pass& pass : kPasses) passes.push_back(&pass);
  for (const std::string& name : options.without)
    std::erase_if(passes, [pass = named(name)](const Pass* other) { return other == pass; });

  RunResult result;
  Stage stage = Stage::kCaptured;
  for (const Pass* pass : passes) {
    const auto begin = std::chrono::steady_clock::now();
    check_stage(graph, pass->in, pass->name);
    Graph after = pass->run(graph, options.settings);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const bool changed = !(after == graph);
    graph = std::move(after);
    stage = std::max(stage, pass->out);
    result.runs.push_back({pass->name, seconds.count(), graph.nodes.size(), changed});
    if (options.verify) verify_stage(graph, stage);
    if (options.after) options.after(pass->name, graph);
  }
  result.graph = std::move(graph);
  return result;
}

std::string to_text(const std::vector<PassRun>& runs) {
  std::string out;
  for (const PassRun& run : runs)
    out += str("{:<24} {:>8.2f} ms {:>7} nodes{}\n", run.name, run.seconds * 1e3, run.nodes,
               run.changed ? "" : ", unchanged");
  return out;
}

std::string passes_page() {
  std::string out =
      "# Passes\n\nIn the order in which they run, printed from the pass table by `irtool --passes`. Each takes a "
      "Graph "
      "and gives a Graph.\n\n| pass | what it does | takes | gives | why here |\n|---|---|---|---|---|\n";
  for (const Pass& pass : kPasses)
    out +=
        str("| `{}` | {} | {} | {} | {} |\n", pass.name, pass.what, name_of(pass.in), name_of(pass.out), pass.why_here);
  return out;
}

}  // namespace stepc
