// irtool: runs passes on the text of a Graph or a Trace, the way to debug, test and report one.
//
//   irtool step.trace                             the step as a Graph
//   irtool --pass simplify,dead_code step.graph   those passes alone
//   irtool --all --verify --times step.trace      the whole pipeline
//   irtool --all --products bf16 step.trace       as on a machine whose blocked kernel takes bf16
#include <cstdio>
#include <filesystem>
#include <set>

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "base/files.h"
#include "ops/op_def.h"
#include "passes/functionalise.h"
#include "passes/pass.h"

namespace {

using namespace stepc;

constexpr uint64_t kMostText = uint64_t{1} << 32;

struct Arguments {
  std::string file;
  std::vector<std::string> passes, without, dump_after, products;
  bool all = false, verify = false, times = false, opaque = false, ops = false, passes_page = false;
};

Graph load(const std::string& path) {
  const std::string text = read_text(path, kMostText);
  if (!text.starts_with("stepc.trace")) return parse_graph(text);
  const Trace trace = parse_trace(text);
  verify(trace);
  return functionalise(trace);
}

void run(const Arguments& arguments) {
  if (arguments.ops) return (void)std::fputs(ops_page().c_str(), stdout);
  if (arguments.passes_page) return (void)std::fputs(passes_page().c_str(), stdout);
  USER_CHECK(!arguments.file.empty(), "no file is given; see irtool --help");
  Graph graph = load(arguments.file);
  verify_ops(graph);
  if (arguments.all || !arguments.passes.empty()) {
    RunOptions options;
    options.verify = arguments.verify;
    options.only = arguments.passes;
    options.without = arguments.without;
    for (const std::string& type : arguments.products) {
      options.settings.products.bf16 |= type == "bf16";
      options.settings.products.f32 |= type == "f32";
    }
    options.after = [&](std::string_view pass, const Graph& after) {
      for (const std::string& name : arguments.dump_after)
        if (name == pass) std::fprintf(stderr, "# after %s\n%s", name.c_str(), to_text(after).c_str());
    };
    RunResult result = run_passes(std::move(graph), options);
    if (arguments.times) std::fputs(to_text(result.runs).c_str(), stderr);
    graph = std::move(result.graph);
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
  CLI::App app("Runs passes on the text of a Graph or a Trace");
  app.add_option("file", arguments.file, "a Graph's or a Trace's text");
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* what) {
    return app.add_option(name, values, what)->delimiter(',')->allow_extra_args(false);
  };
  list("--pass", arguments.passes, "passes to run, in this order");
  app.add_flag("--all", arguments.all, "run the whole pipeline");
  list("--without", arguments.without, "passes to leave out");
  list("--products", arguments.products, "products of these types run on the blocked kernel: bf16, f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  list("--dump-after", arguments.dump_after, "print the Graph after these passes to stderr");
  app.add_flag("--verify", arguments.verify, "verify after every pass");
  app.add_flag("--times", arguments.times, "print a line a pass to stderr");
  app.add_flag("--opaque", arguments.opaque, "print the ATen calls that stay opaque instead of the Graph");
  app.add_flag("--ops", arguments.ops, "print docs/ops.md");
  app.add_flag("--passes", arguments.passes_page, "print docs/passes.md");
  CLI11_PARSE(app, argc, argv);
  try {
    run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "irtool: %s\n", error.what());
    return 1;
  }
  return 0;
}
