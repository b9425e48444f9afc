// How long planning an arena takes and how tight it is: one JSON line for each kind of problem.
//
//   plan_benchmark [INTERVALS]      10,000 unless said
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "memory/layout.h"
#include "tests/memory/training_trace.h"

namespace {

void measure(std::string_view kind, const stepc::LayoutProblem& problem) {
  const auto begin = std::chrono::steady_clock::now();
  const stepc::Layout layout = stepc::plan_layout(problem);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  stepc::verify_layout(problem, layout);
  const nlohmann::ordered_json line = {
      {"kind", kind},
      {"intervals", problem.intervals.size()},
      {"seconds", seconds.count()},
      {"over_lower_bound", static_cast<double>(layout.bytes) / static_cast<double>(stepc::lower_bound(problem))},
      {"algorithm", layout.algorithm}};
  std::puts(line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const long count = argc > 1 ? std::atol(argv[1]) : 10'000;
  if (argc > 2 || count < 100) {
    std::fputs("usage: plan_benchmark [INTERVALS, at least 100]\n", stderr);
    return 2;
  }
  constexpr int kOpsPerLayer = 26;
  constexpr int kIntervalsPerLayer = 100;
  measure("training step",
          stepc::TrainingTrace(static_cast<int>(count / kIntervalsPerLayer), kOpsPerLayer, 1).problem());
  measure("random problem", stepc::random_problem(static_cast<size_t>(count), count / 10, 3));
  return 0;
}
