#include "runtime/graph_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ir/alignment.h"
#include "ops/op_def.h"
#include "runtime/aten_ops.h"
#include "runtime/aten_scratch.h"

namespace stepc {

namespace {

// Arena offsets for the plan's units in program order. What outlives the step is in no arena.
void lay_out(GraphPlan& plan) {
  OrderProblem problem = plan.memory.problem;
  plan.order.order = program_order(problem);
  plan.order.algorithm = "program order";
  plan.order.peak_bytes = peak_bytes(problem, plan.order.order);
  plan.own_bytes = 0;
  for (size_t v = 0; v < problem.values.size(); ++v) {
    if (plan.places[plan.memory.tensor_of[v].index()].kind != Place::Kind::kOwn) continue;
    plan.own_bytes += problem.values[v].bytes;
    problem.values[v].bytes = 0;
  }
  OrderIntervals& intervals = plan.order.intervals;
  intervals = intervals_of(problem, plan.order.order);
  plan.order.layout = plan_layout(intervals.layout);
  plan.order.bound_bytes = lower_bound(intervals.layout);
  const std::vector<uint64_t>& offsets = plan.order.layout.offsets;
  for (size_t v = 0; v < problem.values.size(); ++v)
    if (intervals.interval_of[v] != kNone)
      plan.places[plan.memory.tensor_of[v].index()].offset = offsets[intervals.interval_of[v]];
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const uint32_t interval = intervals.workspace_interval_of[u];
    plan.units[u].scratch_offset = interval == kNone ? 0 : offsets[interval];
    plan.units[u].scratch_bytes = problem.units[u].workspace_bytes;
  }
  plan.arena_bytes = plan.order.layout.bytes;
}

class Planner {
 public:
  Planner(Graph graph, KernelSources& kernels, int threads) : kernels_(kernels), threads_(threads) {
    plan_.graph = std::move(graph);
    plan_.micro_kernels = kernels.micro_kernels;
    plan_.places.resize(plan_.graph.tensors.size());
    copied_views_.assign(plan_.graph.nodes.size(), false);
  }

  GraphPlan plan() {
    find_strides();
    make_units();
    find_own();
    plan_.memory =
        graph_memory(plan_.graph, {.workspace_bytes = [this](NodeId node) { return scratch_bytes(node); },
                                   .may_share = [this](NodeId node, TensorId operand,
                                                       TensorId result) { return may_share(node, operand, result); },
                                   .copied_views = copied_views_});
    check_units();
    place_tensors();
    lay_out(plan_);
    return std::move(plan_);
  }

 private:
  Place& place_of(TensorId tensor) { return plan_.places[tensor.index()]; }

  // Which views are windows and which have to be copied is LibTorch's to say, on tensors without memory.
  void find_strides() {
    const Graph& graph = plan_.graph;
    stand_ins_.resize(graph.tensors.size());
    const auto make = [&](TensorId tensor, const Shape& strides) {
      const TensorType& type = graph.type(tensor);
      stand_ins_[tensor.index()] =
          at::empty_strided(type.shape, strides, at::TensorOptions(scalar_type_of(type.dtype)).device(at::kMeta));
    };
    for (const GraphInput& input : graph.inputs)
      make(input.tensor, input.strides.empty() ? contiguous_strides(graph.shape(input.tensor)) : input.strides);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (!node.group && is_view(node)) {
        const TensorId view = node.outputs[0];
        const at::Tensor& of = stand_ins_[node.inputs[0].index()];
        at::Tensor window;
        if (may_be_window(node)) window = run_aten_op(node, {of}, {graph.type(view)})[0];
        if (window.defined() && window.is_alias_of(of)) {
          stand_ins_[view.index()] = window;
          place_of(view).kind = Place::Kind::kView;
          continue;
        }
        copied_views_[n] = true;
      }
      for (TensorId output : node.outputs) {
        place_of(output).strides = result_strides(node, graph.type(output));
        make(output, place_of(output).strides);
      }
    }
  }

  void make_units() {
    const Graph& graph = plan_.graph;
    std::vector<GroupGraph> groups = extract_groups(graph);
    for (GroupGraph& group : groups)
      for (size_t i = 0; i < group.inputs.size(); ++i) {
        const at::Tensor& from = stand_ins_[group.inputs[i].index()];
        if (!from.is_contiguous()) group.graph.inputs[i].strides = from.strides().vec();
      }
    compile_ahead(groups);
    size_t group = 0;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (!node.group && is_view(node) && !copied_views_[n]) continue;
      if (node.group && n > 0 && graph.nodes[n - 1].group == node.group) {
        plan_.units.back().nodes.emplace_back(n);
        continue;
      }
      unit_of_[NodeId(n)] = plan_.units.size();
      Unit& unit = plan_.units.emplace_back();
      unit.nodes.emplace_back(n);
      if (node.group) {
        const GroupGraph& whole = groups[group++];
        unit.inputs = whole.inputs;
        unit.outputs = whole.outputs;
        make_call(unit, whole);
        continue;
      }
      unit.inputs = node.inputs;
      unit.outputs = node.outputs;
      if (node.aten) unit.opaque.emplace(node);
    }
  }

  // All kernels at once, on several threads; make_call() finds them made. It also finds again, and names, what fails.
  void compile_ahead(const std::vector<GroupGraph>& groups) {
    try {
      std::vector<LoopProgram> programs;
      for (const GroupGraph& group : groups) {
        if (group.outputs.empty()) continue;
        if (is_products(group.graph)) {
          if (why_no_tail(group.graph).empty())
            std::ranges::move(tail_programs(group.graph), std::back_inserter(programs));
        } else if (why_no_loops(group.graph).empty()) {
          programs.push_back(lower(group.graph));
        }
      }
      kernels_.compiler.compile_all(programs, static_cast<size_t>(threads_));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    }
  }

  void make_call(Unit& unit, const GroupGraph& group) {
    if (group.outputs.empty()) return;  // nothing needs it
    const bool generates = !is_products(group.graph) || has_tail(group.graph);
    try {
      if (kernels_.before_compile && generates) kernels_.before_compile(group.graph);
      if (is_products(group.graph))
        unit.products.emplace(group.graph, kernels_.compiler, kernels_.micro_kernels, threads_);
      else
        unit.kernel.emplace(group.graph, kernels_.compiler);
    } catch (const std::exception& error) {
      if (!generates) return;  // products alone: each takes the blocked kernel or ATen's
      plan_.fallbacks.push_back(
          str("group {} ({}): {}", group.group, plan_.graph.nodes[unit.nodes.front().index()].op, error.what()));
    }
  }

  // What the program is given, made by a unit as it is: its memory is the program's from the start.
  void find_own() {
    for (const GraphOutput& output : plan_.graph.outputs) {
      if (output.kind != GraphOutput::Kind::kReturn && output.kind != GraphOutput::Kind::kRebind) continue;
      if (!output.tensor.valid() || plan_.graph.producer(output.tensor) == nullptr) continue;
      Place& place = place_of(output.tensor);
      const Shape contiguous = contiguous_strides(plan_.graph.shape(output.tensor));
      const bool as_it_is = place.strides == (output.strides.empty() ? contiguous : output.strides);
      if (place.kind == Place::Kind::kNowhere && as_it_is) place.kind = Place::Kind::kOwn;
    }
  }

  uint64_t scratch_bytes(NodeId node) const {
    const auto unit = unit_of_.find(node);
    if (unit == unit_of_.end()) return 0;
    const Unit& whole = plan_.units[unit->second];
    if (whole.kernel) return whole.kernel->scratch_bytes();
    if (whole.products) return whole.products->scratch_bytes();
    const Node& alone = plan_.graph.nodes[node.index()];
    return aten_scratch_bytes(plan_.graph, alone, stand_ins_of(alone), plan_.micro_kernels, threads_);
  }
  std::vector<at::Tensor> stand_ins_of(const Node& node) const {
    std::vector<at::Tensor> inputs;
    for (TensorId input : node.inputs) inputs.push_back(stand_ins_[input.index()]);
    return inputs;
  }
  bool may_share(NodeId node, TensorId operand, TensorId result) const {
    if (plan_.places[result.index()].kind == Place::Kind::kOwn) return false;
    const Unit& unit = plan_.units[unit_of_.at(node)];
    if (!unit.kernel && !unit.products) return writes_in_place(plan_.graph.nodes[node.index()]);
    const auto output = static_cast<size_t>(std::ranges::find(unit.outputs, result) - unit.outputs.begin());
    const auto shares = [&](size_t input) {
      return unit.kernel ? unit.kernel->may_share(input, output) : unit.products->may_share(input, output);
    };
    for (size_t i = 0; i < unit.inputs.size(); ++i)
      if (root_of(unit.inputs[i]) == operand && !shares(i)) return false;
    return true;
  }
  TensorId root_of(TensorId tensor) const {
    while (plan_.places[tensor.index()].kind == Place::Kind::kView) tensor = plan_.graph.producer(tensor)->inputs[0];
    return tensor;
  }

  // memory/ cuts the Graph into the same units, and what guards need is first already.
  void check_units() const {
    INTERNAL_CHECK_EQ(plan_.memory.nodes_of.size(), plan_.units.size(), "units");
    for (size_t u = 0; u < plan_.units.size(); ++u)
      INTERNAL_CHECK(plan_.memory.nodes_of[u] == plan_.units[u].nodes, "unit {} is not the same in the memory plan", u);
  }

  void place_tensors() {
    for (size_t t = 0; t < plan_.places.size(); ++t) {
      Place& place = plan_.places[t];
      const uint32_t value = plan_.memory.value_of[t];
      if (place.kind == Place::Kind::kView || value == kNone) continue;
      if (plan_.memory.tensor_of[value] != TensorId(t)) continue;  // a group's own view of what lies there
      const uint32_t input = plan_.memory.input_of[value];
      if (place.kind == Place::Kind::kOwn) {
        INTERNAL_CHECK_EQ(input, kNone, "what leaves the step lies in the program's memory");
        continue;
      }
      place.kind = input == kNone ? Place::Kind::kArena : Place::Kind::kInput;
      place.input = input;
    }
  }

  GraphPlan plan_;
  KernelSources& kernels_;
  int threads_;
  std::vector<at::Tensor> stand_ins_;  // by tensor: its sizes and strides, without memory
  std::vector<bool> copied_views_;     // by node
  std::map<NodeId, size_t> unit_of_;   // by first node
};

}  // namespace

size_t GraphPlan::kernels() const {
  return static_cast<size_t>(std::ranges::count_if(
      units, [](const Unit& unit) { return unit.kernel || (unit.products && unit.products->finishes()); }));
}

GraphPlan plan_graph(Graph graph, KernelSources& kernels, int threads) {
  return Planner(std::move(graph), kernels, threads).plan();
}

void grow_scratch(GraphPlan& plan, const std::vector<uint64_t>& bytes) {
  for (size_t u = 0; u < plan.units.size(); ++u) {
    uint64_t& planned = plan.memory.problem.units[u].workspace_bytes;
    planned = std::max(planned, aligned(bytes[u]));
  }
  lay_out(plan);
}

}  // namespace stepc
