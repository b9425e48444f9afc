// Pass: a free function from Graph to Graph in a file of its own. Only the runner times, dumps and verifies; a pass
// neither logs nor checks itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ops/rules/matmul_rule.h"
#include "passes/fp8.h"
#include "passes/partition/strategy.h"
#include "passes/recompute.h"

namespace stepc {

// What a Graph may contain. kCaptured: every op. kCore: only core ops and opaque nodes, no composites. kFused: also
// groups, each of them one kernel, or one call for matmuls.
enum class Stage : uint8_t { kCaptured, kCore, kFused };
std::string_view name_of(Stage stage);
// verify_ops() and the rules of the stage; throws InternalError that names the node.
void verify_stage(const Graph& graph, Stage stage);

// What a person chooses, and what the machine has. A pass without use for a setting ignores it.
struct PassSettings {
  MatmulRule matmuls;
  std::optional<RecomputeOptions> recompute;  // none: nothing is recomputed
  Strategy strategy = {};                     // no mesh: one device
  bool is_for_gpu = false;                    // a GPU, whose exchanges also reduce
  int64_t exchange_parts = 1;                 // that exchanges and their matmuls are cut into, if exchanges overlap
  std::optional<Fp8Recipe> fp8 = {};          // of the linear layers' matmuls; none: they are as the step has them
  std::shared_ptr<KnownGroups> groups = {};   // that fuse() and recompute() know of other graphs
  bool has_fp8 = false;                       // the machine multiplies float8; else scaled matmuls are decomposed
};

struct Pass {
  std::string_view name;
  Graph (*run)(Graph graph, const PassSettings& settings);
  Stage in, out;              // the stages before it, which the runner checks, and after it
  std::string_view what;      // one sentence
  std::string_view why_here;  // the order constraint
};

// All passes in the order in which they run.
std::span<const Pass> pass_table();
const Pass* find_pass(std::string_view name);

struct PassRun {
  std::string_view name;
  double seconds = 0;
  size_t nodes = 0;  // after the pass
  bool changed = false;
};

struct RunOptions {
  bool verify = false;                    // after every pass
  std::vector<std::string> only = {};     // names, in the order to run them; empty: all, as in the table
  std::vector<std::string> without = {};  // names to leave out
  PassSettings settings = {};
  std::function<void(std::string_view pass, const Graph& graph)> after = nullptr;  // for dumps
};
struct RunResult {
  Graph graph;
  std::vector<PassRun> runs;
};
// Throws UserError for an unknown name.
RunResult run_passes(Graph graph, const RunOptions& options = {});
// One line for each pass: time, remaining nodes, and whether anything changed.
std::string to_text(const std::vector<PassRun>& runs);

// The text of docs/passes.md.
std::string passes_page();

}  // namespace stepc
