#include "plan/search_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "ops/op_def.h"
#include "passes/partition/partition.h"
#include "plan/search.h"
#include "plan/simulate.h"

namespace stepc {

double of_depth(double shallow, double deep, int64_t layers) {
  return shallow + (deep - shallow) / (kDeep - kShallow) * static_cast<double>(layers - kShallow);
}

uint64_t bytes_of_depth(double shallow, double deep, int64_t layers) {
  return static_cast<uint64_t>(std::max(0.0, of_depth(shallow, deep, layers)));
}

double more_layers(int64_t layers) {
  return static_cast<double>(std::max<int64_t>(layers - kDeep, 0)) / static_cast<double>(kDeep);
}

PartPlan plan_part(const Graph& captured, const PlanGraphOptions& options) {
  const PlannedGraph planned = plan_graph(captured, nullptr, options);
  const Schedule& schedule = planned.plan.schedule;
  const Timeline timeline = simulate(schedule, options.target);
  PartPlan part;
  part.context = planned.context;
  for (size_t i = 0; i < timeline.entries.size(); ++i) {
    if (timeline.entries[i].work == WorkClass::kCollective) continue;
    const double seconds = timeline.entries[i].seconds();
    part.taken.compute_seconds += seconds;
    if (schedule.instructions[i].source.phase != Phase::kUpdate) part.taken.pass_seconds += seconds;
  }
  part.taken.seconds = timeline.seconds;
  part.taken.exchange_seconds = timeline.exchange_seconds;
  part.taken.exposed_seconds = timeline.exposed_seconds;
  part.taken.input_bytes = static_cast<double>(schedule.input_bytes());
  part.taken.memory = LayerMemory(schedule);
  part.state = state_of(planned.graph);
  Strategy keeping;
  keep_parameters(keeping, planned.graph);
  part.parameters = std::move(keeping.known);
  return part;
}

namespace {

// The part as one device's: where ranks only split rows, a part without exchanges is the same on any mesh.
std::optional<Graph> without_mesh(const Graph& part) {
  const auto is_of_rows = [](const MeshAxis& axis) { return axis.name == "dp_replicate" || axis.name == "dp_shard"; };
  const auto is_of_rank = [](const GraphInput& input) { return input.kind == InputKind::kMesh; };
  const auto is_exchange = [](const Node& node) { return collective_of(node) != Collective::kNone; };
  if (!std::ranges::all_of(part.mesh.axes, is_of_rows) || std::ranges::any_of(part.inputs, is_of_rank) ||
      std::ranges::any_of(part.nodes, is_exchange))
    return std::nullopt;
  Graph alone = part;
  alone.mesh = {};
  for (GraphInput& input : alone.inputs) input.part.reset();
  for (GraphOutput& output : alone.outputs) output.part.reset();
  return alone;
}

}  // namespace

PartPlan PartPlans::plan(const Graph& captured, PlanGraphOptions options) {
  options.passes.settings.groups = groups_;
  const bool is_cut = std::ranges::find(options.passes.without, "partition") != options.passes.without.end();
  const std::optional<Graph> alone = is_cut ? without_mesh(captured) : std::nullopt;
  if (!alone) return plan_part(captured, options);
  options.passes.settings.strategy.mesh = {};
  const MemoryBudget& budget = options.budget;
  const std::string key =
      str("{} {} {}\n{}", static_cast<int>(budget.kind), budget.bytes, budget.more_layers, to_text(*alone));
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = alone_.find(key); found != alone_.end()) return found->second;
  }
  PartPlan plan = plan_part(*alone, options);
  const std::scoped_lock lock(mutex_);
  return alone_.emplace(key, std::move(plan)).first->second;
}

double WholeStep::bytes(InputKind kind) const {
  double sum = 0;
  for (const auto& [key, bytes] : state) sum += key.first == kind ? static_cast<double>(bytes) : 0;
  return sum;
}

WholeStep whole_of(const Graph& step) {
  WholeStep whole;
  whole.state = state_of(step);
  for (const Node& node : step.nodes) whole.flops += work_of(step, node).all_flops();
  for (const GraphOutput& output : step.outputs) {
    if (output.kind != GraphOutput::Kind::kUpdate) continue;
    const GraphInput& input = step.inputs[output.input];
    if (input.kind != InputKind::kParameter) continue;
    const TensorType& type = step.type(input.tensor);
    const auto element = std::max(size_of(type.dtype), size_of(DType::kF32));
    whole.gradient_bytes += static_cast<double>(element_count(type.shape)) * static_cast<double>(element);
  }
  return whole;
}

Context context_of(const Graph& step, const PlanGraphOptions& options) {
  const Strategy& strategy = options.passes.settings.strategy;
  if (strategy.context != Context::kByPrice) return strategy.context;
  return strategy.mesh.find("cp") ? plan_part(step, options).context : Context::kGather;
}

}  // namespace stepc
