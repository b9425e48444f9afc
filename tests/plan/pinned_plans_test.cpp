// What a CPU plans does not change by accident: ten Schedules' hashes, each before its Graph in pinned_plans.ir. Who
// means to change plans writes new hashes there (irtool --schedule --hash) and says in the commit why.
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "base/files.h"
#include "base/text.h"
#include "plan/plan_graph.h"

namespace stepc {
namespace {

TEST(PinnedPlans, ACpusPlansAreTheSameAsEver) {
  constexpr uint64_t kMost = 1 << 20;
  std::istringstream text(read_text(str("{}/tests/plan/pinned_plans.ir", STEPC_SOURCE_DIR), kMost));
  PlanGraphOptions options;
  options.target.features = {.bf16 = true, .f32 = true, .avx512 = true};
  options.target.threads = 2;
  int plans = 0;
  std::string line, hash, name, graph;
  const auto check = [&] {
    if (graph.empty()) return;
    const Schedule schedule = plan_graph(parse_graph("stepc.graph 1\n" + graph), nullptr, options).plan.schedule;
    EXPECT_EQ(hash_of(schedule), hash) << name << "\n" << to_text(schedule);
    EXPECT_FALSE(to_text(schedule).find("device") != std::string::npos) << name;
    ++plans;
    graph.clear();
  };
  while (std::getline(text, line)) {
    if (!line.starts_with("# ")) {
      graph += line + "\n";
      continue;
    }
    check();
    constexpr size_t kBegin = 2, kDigits = 16;
    hash = line.substr(kBegin, kDigits);
    name = line.substr(kBegin + kDigits);
  }
  check();
  EXPECT_EQ(plans, 10);
}

}  // namespace
}  // namespace stepc
