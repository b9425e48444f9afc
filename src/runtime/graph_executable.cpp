#include "runtime/graph_executable.h"

#include <algorithm>
#include <set>

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "runtime/arena.h"
#include "runtime/graph_inputs.h"
#include "runtime/index_limits.h"
#include "runtime/unit_runner.h"

namespace stepc {

namespace {

void check_can_run(const Trace& trace) {
  for (const HostEvent& event : trace.events) {
    USER_CHECK(event.kind != HostEvent::Kind::kPause, "the step pauses for the loop around it");
    USER_CHECK(event.kind == HostEvent::Kind::kShadow, "'{}' computes on the host between kernels", event.key);
  }
  USER_CHECK(trace.generators.size() <= 1, "the step draws from generators of its own");
}

// How many units run before the guards are known; these come first, and nothing that they need comes from the host.
size_t units_before_guards(const Trace& trace, const GraphPlan& plan) {
  const Graph& graph = plan.graph;
  std::vector<bool> needed(graph.tensors.size(), false);
  const auto need = [&](TensorId tensor) {
    for (; plan.places[tensor.index()].kind == Place::Kind::kView; tensor = graph.producer(tensor)->inputs[0])
      needed[tensor.index()] = true;
    needed[tensor.index()] = true;
  };
  const auto is_needed = [&](TensorId tensor) { return needed[tensor.index()]; };
  for (const GraphOutput& output : graph.outputs)
    if (output.kind == GraphOutput::Kind::kGuard) need(output.tensor);
  // A unit runs whole: what any of its nodes reads has to be there.
  size_t before = 0;
  for (size_t u = plan.units.size(); u-- > 0;) {
    if (std::ranges::none_of(plan.units[u].outputs, is_needed)) continue;
    before = std::max(before, u + 1);
    for (TensorId in : plan.units[u].inputs) need(in);
  }
  for (const GraphInput& input : graph.inputs)
    USER_CHECK(input.kind != InputKind::kScalar || trace.events.empty() || !is_needed(input.tensor),
               "a decision depends on what '{}' supplies", input.key);
  return before;
}

Arg number_in(const at::Tensor& value) {
  if (value.scalar_type() == at::kBool) return value.item<bool>();
  if (at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) return value.item<int64_t>();
  return value.item<double>();
}

// New contents for the program's memory. They may be views of old contents that another update writes: those are copied
// first.
void write_updates(std::vector<std::pair<at::Tensor, at::Tensor>>& updates) {
  std::set<const void*> targets;
  for (const auto& [target, value] : updates) targets.insert(target.storage().unsafeGetStorageImpl());
  for (auto& [target, value] : updates)
    if (!target.is_same(value) && targets.count(value.storage().unsafeGetStorageImpl()) != 0) value = value.clone();
  for (const auto& [target, value] : updates) {
    if (!target.is_same(value)) target.copy_(value);
    target.unsafeGetTensorImpl()->bump_version();
  }
}

// A copy for the program, laid out as it saw the tensor.
at::Tensor copy_for_program(const at::Tensor& value, const Shape& strides) {
  at::Tensor own = at::empty_strided(value.sizes(), strides, value.options());
  // Of what an expanded dimension repeats, one is written.
  at::Tensor to = own;
  at::Tensor from = value;
  for (int64_t d = 0; d < own.dim(); ++d) {
    if (own.stride(d) != 0 || own.size(d) == 0) continue;
    to = to.narrow(d, 0, 1);
    from = from.narrow(d, 0, 1);
  }
  if (to.is_non_overlapping_and_dense() || at::has_internal_overlap(to) == at::MemOverlap::No) {
    to.copy_(from);
    return own;
  }
  return value.clone(at::MemoryFormat::Contiguous);  // windows that meet each other
}

}  // namespace

struct GraphExecutable::Impl {
  GraphPlan plan;
  GraphInputs inputs;
  size_t events;
  std::vector<IndexLimit> limits;
  size_t before_guards;
  UnitRunner runner;

  Impl(const Trace& trace, GraphPlan planned)
      : plan((check_can_run(trace), std::move(planned))),
        inputs(trace, plan.graph),
        events(trace.events.size()),
        limits(index_limits(plan)),
        before_guards(units_before_guards(trace, plan)),
        runner(plan) {}

  const at::Tensor& value(TensorId tensor) const { return runner.value(tensor); }

  void bind_inputs(const std::vector<at::Tensor>& externals) {
    for (size_t i = 0; i < plan.graph.inputs.size(); ++i) runner.bind_input(i, inputs.tensor(i, externals));
  }

  bool indices_are_within() const {
    return std::ranges::all_of(limits, [&](const IndexLimit& limit) {
      return within(limit, indices_of(limit, plan.graph, value(limit.from)));
    });
  }

  bool guards_hold() const {
    return std::ranges::all_of(plan.graph.outputs, [&](const GraphOutput& output) {
      return output.kind != GraphOutput::Kind::kGuard || value(output.tensor).item<bool>();
    });
  }

  at::Tensor handed_out(const GraphOutput& output, std::set<TensorId>& given) {
    if (!output.tensor.valid()) return {};
    const Shape strides = output.strides.empty() ? contiguous_strides(plan.graph.shape(output.tensor)) : output.strides;
    const bool is_own = plan.places[output.tensor.index()].kind == Place::Kind::kOwn;
    if (is_own && value(output.tensor).strides() == c10::IntArrayRef(strides) && given.insert(output.tensor).second)
      return value(output.tensor);
    at::Tensor copy = copy_for_program(value(output.tensor), strides);
    runner.memory().note_kept(copy.nbytes());
    return copy;
  }

  StepResult finish() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    StepResult result;
    result.of_graph = true;
    // Everything that leaves is read before anything is written: an update may stand for another output's memory.
    std::vector<std::pair<at::Tensor, at::Tensor>> updates;
    std::set<TensorId> given;
    for (const GraphOutput& output : plan.graph.outputs) {
      switch (output.kind) {
        case GraphOutput::Kind::kUpdate: {
          const at::Tensor& target = value(plan.graph.inputs[output.input].tensor);
          const Place& place = plan.places[output.tensor.index()];
          const bool is_there = place.kind == Place::Kind::kInput && place.input == output.input;
          updates.emplace_back(target, is_there ? target : value(output.tensor));
          break;
        }
        case GraphOutput::Kind::kRebind:
          result.rebindings.push_back({*owner_of(output.owner), output.key, handed_out(output, given)});
          break;
        case GraphOutput::Kind::kReturn:
          result.outputs.push_back(handed_out(output, given));
          break;
        case GraphOutput::Kind::kNumber:
          result.numbers.push_back(number_in(value(output.tensor)));
          break;
        case GraphOutput::Kind::kGuard:
          break;
      }
    }
    write_updates(updates);
    result.memory = runner.memory().counts();
    return result;
  }
};

GraphExecutable::GraphExecutable(const Trace& trace, GraphPlan plan)
    : impl_(std::make_unique<Impl>(trace, std::move(plan))) {}
GraphExecutable::~GraphExecutable() = default;

void GraphExecutable::supply(CallId call, size_t arg, const c10::IValue& number) {
  impl_->inputs.supply(call, arg, number);
}
bool GraphExecutable::is_unfit() const { return impl_->inputs.is_unfit(); }
const GraphPlan& GraphExecutable::plan() const { return impl_->plan; }

std::optional<StepResult> GraphExecutable::run(const RunInputs& inputs) {
  Impl& impl = *impl_;
  if (inputs.times != nullptr) inputs.times->begin(/*of_graph=*/true);
  const ArenaLease arena;
  const UnitRunner::Step step(impl.runner, *arena);
  impl.bind_inputs(inputs.externals);
  if (!impl.indices_are_within()) return std::nullopt;  // the recorded calls say which is not
  const at::Generator& generator = at::globalContext().defaultGenerator(at::kCPU);
  std::optional<GeneratorSnapshot> before;
  if (impl.inputs.draws()) before = read_generator(generator);
  impl.inputs.draw_seed();
  const auto turn_back = [&] {
    if (before) write_generator(generator, *before);
  };

  impl.runner.run(0, impl.before_guards, inputs.times);
  if (!impl.guards_hold()) {
    turn_back();
    return std::nullopt;
  }
  StepResult result;
  for (size_t event = 0; event < impl.events && result.stopped.empty(); ++event)
    result.stopped = inputs.on_event(event, {});
  if (impl.inputs.is_unfit() && result.stopped.empty()) result.stopped = "the optimizer passes another integer";
  if (!result.stopped.empty()) {
    turn_back();
    return result;
  }
  impl.runner.run(impl.before_guards, impl.plan.units.size(), inputs.times);
  result = impl.finish();
  if (inputs.times != nullptr) inputs.times->end();
  impl.runner.apply_what_was_learnt(impl.plan);
  return result;
}

}  // namespace stepc
