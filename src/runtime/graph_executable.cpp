#include "runtime/graph_executable.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ops/op_def.h"
#include "runtime/aten_ops.h"
#include "runtime/blocked_attention.h"
#include "runtime/kernel_call.h"
#include "runtime/opaque_call.h"

namespace stepc {

namespace {
// One instruction: a node, or a group of nodes as one kernel, and which tensors nobody reads after it.
struct Unit {
  std::vector<NodeId> nodes;
  std::vector<TensorId> inputs, outputs;
  std::optional<OpaqueCall> opaque;
  std::optional<KernelCall> kernel;
  std::vector<ssize_t> shares;  // by output of the kernel: the graph input whose memory it is written to, or -1
  std::vector<TensorId> dead;
};

// Where a graph input comes from.
struct Origin {
  size_t external = 0;  // of the program's memory: index into the trace's externals
  int64_t offset = 0;   // its window begins so many elements after the external's own
  at::Tensor scalar;    // of a host number: a 0-dim tensor that lives here
};

// The arguments that the host supplies, by call: graph inputs, one a number (a list has several).
using Supplies = std::map<std::pair<CallId, size_t>, std::vector<size_t>>;

std::optional<Owner> owner_of(InputKind kind) {
  switch (kind) {
    case InputKind::kParameter:
      return Owner::kParameter;
    case InputKind::kGradient:
      return Owner::kGradient;
    case InputKind::kOptimizerState:
      return Owner::kOptimizerState;
    case InputKind::kBuffer:
      return Owner::kBuffer;
    case InputKind::kBatch:
      return Owner::kBatch;
    case InputKind::kCaptured:
      return Owner::kCaptured;
    case InputKind::kIncoming:
      return Owner::kIncoming;
    case InputKind::kScalar:
    case InputKind::kRng:
      return std::nullopt;
  }
  return std::nullopt;
}

void check_can_run(const Trace& trace) {
  for (const HostEvent& event : trace.events) {
    USER_CHECK(event.kind != HostEvent::Kind::kPause, "the step pauses for the loop around it");
    USER_CHECK(event.kind == HostEvent::Kind::kShadow, "'{}' computes on the host between kernels", event.key);
  }
  USER_CHECK(trace.generators.size() <= 1, "the step draws from generators of its own");
}
}  // namespace

struct GraphExecutable::Impl {
  Trace trace;
  Graph graph;
  std::vector<Unit> units;
  std::vector<Origin> origins;  // by graph input
  Supplies supplies;
  std::vector<size_t> early;       // units that guards need
  std::vector<size_t> late;        // all others
  bool unfit = false;              // the host supplies what the Graph cannot take
  at::Tensor rng;                  // (seed, step) of this run
  std::vector<at::Tensor> values;  // by tensor, of this run
  blocked::MicroKernels micro_kernels;
  std::vector<std::string> fallbacks;

  Impl(const Trace& recorded, Graph g, KernelSources& kernels)
      : trace(recorded), graph(std::move(g)), values(graph.tensors.size()), micro_kernels(kernels.micro_kernels) {
    check_can_run(trace);
    find_origins();
    make_units(kernels);
    split_units();
    share_memory();
  }

  // ---- binding

  void find_origins() {
    std::map<std::pair<InputKind, std::string>, size_t> scalars;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const GraphInput& input = graph.inputs[i];
      Origin& origin = origins.emplace_back();
      if (input.kind == InputKind::kRng) {
        rng = origin.scalar = at::zeros({2}, at::kLong);
      } else if (input.kind == InputKind::kScalar) {
        origin.scalar = at::zeros({}, scalar_type_of(graph.type(input.tensor).dtype));
        scalars[{input.kind, input.key}] = i;
      } else {
        find_external(input, origin);
      }
    }
    for (const HostEvent& event : trace.events)
      for (size_t c = event.begin.index(); c < event.end.index(); ++c)
        for (size_t a = 0; a < trace.calls[c].args.size(); ++a) find_supply(event, CallId(c), a, scalars);
  }

  void find_external(const GraphInput& input, Origin& origin) {
    const Owner owner = *owner_of(input.kind);
    const auto found = std::ranges::find_if(
        trace.externals, [&](const External& one) { return one.owner == owner && one.key == input.key; });
    INTERNAL_CHECK(found != trace.externals.end(), "{} '{}' is no external", name_of(input.kind), input.key);
    const Value& value = trace.values[found->value.index()];
    USER_CHECK(value.dtype == graph.type(input.tensor).dtype, "{} '{}' is used as another type", name_of(input.kind),
               input.key);
    origin.external = static_cast<size_t>(found - trace.externals.begin());
    origin.offset = input.offset - value.offset;
  }

  // functionalise names a host number by its event, the call's place in it, the argument and its place in a list.
  void find_supply(const HostEvent& event, CallId call, size_t arg,
                   const std::map<std::pair<InputKind, std::string>, size_t>& scalars) {
    const std::string key = str("{}:{}:{}", event.key, call.index() - event.begin.index(), arg);
    std::vector<size_t> inputs;
    if (const auto one = scalars.find({InputKind::kScalar, key}); one != scalars.end()) inputs.push_back(one->second);
    for (size_t k = 0;; ++k) {
      const auto element = scalars.find({InputKind::kScalar, str("{}:{}", key, k)});
      if (element == scalars.end()) break;
      inputs.push_back(element->second);
    }
    if (!inputs.empty()) supplies[{call, arg}] = std::move(inputs);
  }

  void make_units(KernelSources& kernels) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (node.group && n > 0 && graph.nodes[n - 1].group == node.group) {
        units.back().nodes.emplace_back(n);
        continue;
      }
      Unit& unit = units.emplace_back();
      unit.nodes.emplace_back(n);
      if (node.aten) unit.opaque.emplace(node);
    }
    for (Unit& unit : units) {
      const Node& first = graph.nodes[unit.nodes.front().index()];
      if (first.group) {
        GroupGraph group = extract_group(graph, *first.group);
        unit.inputs = std::move(group.inputs);
        unit.outputs = std::move(group.outputs);
        make_kernel(unit, group.graph, *first.group, kernels);
      } else {
        unit.inputs = first.inputs;
        unit.outputs = first.outputs;
      }
    }
  }

  void make_kernel(Unit& unit, const Graph& group, uint32_t number, KernelSources& kernels) {
    try {
      if (group.outputs.empty()) return;  // nothing needs it
      unit.kernel.emplace(group, kernels.compiler);
      unit.shares.assign(unit.outputs.size(), -1);
    } catch (const std::exception& error) {
      fallbacks.push_back(str("group {} ({}): {}", number, graph.nodes[unit.nodes.front().index()].op, error.what()));
    }
  }

  // The tensor whose memory `tensor` may be a window on.
  TensorId root_of(TensorId tensor) const {
    for (const Node* node = graph.producer(tensor); node != nullptr; node = graph.producer(tensor)) {
      if (node->aten || !(op_def(node->op).has(Trait::kView) || node->op == "cast")) break;
      tensor = node->inputs[0];
    }
    return tensor;
  }

  // New contents of a program's tensor go right into its memory where the kernel that makes them is the last to read
  // it.
  void share_memory() {
    std::vector<size_t> order = early;
    order.insert(order.end(), late.begin(), late.end());
    std::vector<size_t> last(graph.tensors.size(), 0);  // position in the order of the last unit that reads it
    for (size_t place = 0; place < order.size(); ++place)
      for (TensorId in : units[order[place]].inputs) {
        last[in.index()] = place;
        last[root_of(in).index()] = place;
      }
    std::vector<bool> leaves(graph.tensors.size(), false);
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) leaves[root_of(output.tensor).index()] = true;
    for (size_t place = early.size(); place < order.size(); ++place) {
      Unit& unit = units[order[place]];
      if (!unit.kernel) continue;
      for (const GraphOutput& output : graph.outputs) {
        if (output.kind != GraphOutput::Kind::kUpdate) continue;
        const GraphInput& target = graph.inputs[output.input];
        const auto made = std::ranges::find(unit.outputs, output.tensor);
        const auto read = std::ranges::find(unit.inputs, target.tensor);
        if (made == unit.outputs.end() || leaves[target.tensor.index()] || !target.strides.empty()) continue;
        if (last[target.tensor.index()] > place || origins[output.input].scalar.defined()) continue;
        const auto o = static_cast<size_t>(made - unit.outputs.begin());
        const bool safe =
            read == unit.inputs.end() || unit.kernel->may_share(static_cast<size_t>(read - unit.inputs.begin()), o);
        const bool again = read != unit.inputs.end() && std::ranges::count(unit.inputs, target.tensor) != 1;
        if (!safe || again || unit.shares[o] >= 0) continue;
        unit.shares[o] = output.input;
      }
    }
  }

  // After which unit each tensor is let go, for units that run in this order.
  void find_deaths(const std::vector<size_t>& order) {
    std::vector<size_t> last_use(graph.tensors.size(), SIZE_MAX);
    for (size_t u : order) {
      for (TensorId out : units[u].outputs) last_use[out.index()] = u;
      for (TensorId in : units[u].inputs) last_use[in.index()] = u;
    }
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) last_use[output.tensor.index()] = SIZE_MAX;
    for (const GraphInput& input : graph.inputs) last_use[input.tensor.index()] = SIZE_MAX;  // the program's own
    for (size_t t = 0; t < last_use.size(); ++t)
      if (last_use[t] != SIZE_MAX) units[last_use[t]].dead.push_back(TensorId(t));
  }

  // Guards first: nothing that they need comes from the host's numbers.
  void split_units() {
    std::vector<bool> needed(graph.tensors.size(), false);
    for (const GraphOutput& output : graph.outputs)
      if (output.kind == GraphOutput::Kind::kGuard) needed[output.tensor.index()] = true;
    std::vector<bool> is_early(units.size(), false);
    for (size_t u = units.size(); u-- > 0;) {
      is_early[u] = std::ranges::any_of(units[u].outputs, [&](TensorId out) { return needed[out.index()]; });
      if (!is_early[u]) continue;
      for (TensorId in : units[u].inputs) needed[in.index()] = true;
    }
    for (const GraphInput& input : graph.inputs)
      USER_CHECK(input.kind != InputKind::kScalar || trace.events.empty() || !needed[input.tensor.index()],
                 "a decision depends on what '{}' supplies", input.key);
    for (size_t u = 0; u < units.size(); ++u) (is_early[u] ? early : late).push_back(u);
    std::vector<size_t> order = early;
    order.insert(order.end(), late.begin(), late.end());
    find_deaths(order);
  }

  // ---- running

  void bind_inputs(const std::vector<at::Tensor>& externals) {
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const GraphInput& input = graph.inputs[i];
      const Origin& origin = origins[i];
      if (origin.scalar.defined()) {
        values[input.tensor.index()] = origin.scalar;
        continue;
      }
      const at::Tensor& whole = externals[origin.external];
      const Shape& shape = graph.shape(input.tensor);
      const Shape strides = input.strides.empty() ? contiguous_strides(shape) : input.strides;
      values[input.tensor.index()] = whole.as_strided(shape, strides, whole.storage_offset() + origin.offset);
    }
  }

  void draw_seed() {
    if (!rng.defined()) return;
    // One number from the generator seeds the step's draws: seeding, saving and restoring it work as they do in eager.
    rng.mutable_data_ptr<int64_t>()[0] = at::randint(INT64_MAX, {}, at::kLong).item<int64_t>();
  }

  std::vector<at::Tensor> values_of(const std::vector<TensorId>& tensors) const {
    std::vector<at::Tensor> out;
    out.reserve(tensors.size());
    for (TensorId tensor : tensors) out.push_back(values[tensor.index()]);
    return out;
  }

  void run_kernel(const Unit& unit) {
    std::vector<at::Tensor> results(unit.outputs.size());
    for (size_t o = 0; o < results.size(); ++o)
      if (unit.shares[o] >= 0) {
        const at::Tensor& target = values[graph.inputs[static_cast<size_t>(unit.shares[o])].tensor.index()];
        if (target.is_contiguous()) results[o] = target;
      }
    unit.kernel->run(values_of(unit.inputs), results);
    for (size_t o = 0; o < results.size(); ++o) values[unit.outputs[o].index()] = std::move(results[o]);
  }

  void run_node(const Node& node, const std::optional<OpaqueCall>& opaque) {
    std::vector<TensorType> types;
    for (TensorId out : node.outputs) types.push_back(graph.type(out));
    std::vector<at::Tensor> results;
    if (opaque)
      results = opaque->run(values_of(node.inputs));
    else if (auto blocked = run_blocked(node))
      results = std::move(*blocked);
    else
      results = run_aten_op(node, values_of(node.inputs), types);
    for (size_t r = 0; r < results.size(); ++r) values[node.outputs[r].index()] = std::move(results[r]);
  }

  std::optional<std::vector<at::Tensor>> run_blocked(const Node& node) const {
    if (!op_def(node.op).has(Trait::kOwnKernel)) return std::nullopt;
    return run_blocked_attention(node, values_of(node.inputs), micro_kernels);
  }

  void run_unit(const Unit& unit) {
    if (unit.kernel)
      run_kernel(unit);
    else
      for (NodeId node : unit.nodes) run_node(graph.nodes[node.index()], unit.opaque);
    for (TensorId dead : unit.dead) values[dead.index()].reset();
  }

  void run_units(const std::vector<size_t>& order) {
    // Below autograd and autocast, where the calls were recorded.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
    for (size_t unit : order) run_unit(units[unit]);
  }

  bool guards_hold() const {
    return std::ranges::all_of(graph.outputs, [&](const GraphOutput& output) {
      return output.kind != GraphOutput::Kind::kGuard || values[output.tensor.index()].item<bool>();
    });
  }

  // A tensor for the program: memory of its own, laid out as the program saw it.
  at::Tensor handed_out(const GraphOutput& output) const {
    if (!output.tensor.valid()) return {};
    const at::Tensor& value = values[output.tensor.index()];
    const Shape& shape = graph.shape(output.tensor);
    const at::Tensor own =
        at::empty_strided(shape, output.strides.empty() ? contiguous_strides(shape) : output.strides, value.options());
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

  StepResult finish() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    StepResult result;
    // Everything that leaves is read before anything is written: an update may stand for another output's memory.
    std::vector<std::pair<at::Tensor, at::Tensor>> updates;
    for (const GraphOutput& output : graph.outputs) {
      switch (output.kind) {
        case GraphOutput::Kind::kUpdate:
          updates.emplace_back(values[graph.inputs[output.input].tensor.index()], values[output.tensor.index()]);
          break;
        case GraphOutput::Kind::kRebind:
          result.rebindings.push_back({*owner_of(output.owner), output.key, handed_out(output)});
          break;
        case GraphOutput::Kind::kReturn:
          result.outputs.push_back(handed_out(output));
          break;
        case GraphOutput::Kind::kNumber:
          result.numbers.push_back(number_in(values[output.tensor.index()]));
          break;
        case GraphOutput::Kind::kGuard:
          break;
      }
    }
    write(updates);
    return result;
  }

  // A new value may be a view of old contents that another update writes: those are copied first.
  static void write(std::vector<std::pair<at::Tensor, at::Tensor>>& updates) {
    std::set<const void*> targets;
    for (const auto& [target, value] : updates) targets.insert(target.storage().unsafeGetStorageImpl());
    for (auto& [target, value] : updates)
      if (!target.is_same(value) && targets.count(value.storage().unsafeGetStorageImpl()) != 0) value = value.clone();
    for (const auto& [target, value] : updates) {
      if (!target.is_same(value)) target.copy_(value);
      target.unsafeGetTensorImpl()->bump_version();
    }
  }

  static Arg number_in(const at::Tensor& value) {
    if (value.scalar_type() == at::kBool) return value.item<bool>();
    if (at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) return value.item<int64_t>();
    return value.item<double>();
  }
};

// Lets go of a run's tensors, however it ends.
struct GraphExecutable::RunValues {
  explicit RunValues(Impl& impl) : impl(impl) {}
  ~RunValues() {
    for (at::Tensor& value : impl.values) value.reset();
  }
  RunValues(const RunValues&) = delete;
  RunValues& operator=(const RunValues&) = delete;
  Impl& impl;
};

GraphExecutable::GraphExecutable(const Trace& trace, Graph graph, KernelSources& kernels)
    : impl_(std::make_unique<Impl>(trace, std::move(graph), kernels)) {}
GraphExecutable::~GraphExecutable() = default;

void GraphExecutable::supply(CallId call, size_t arg, const c10::IValue& number) {
  const auto found = impl_->supplies.find({call, arg});
  if (found == impl_->supplies.end()) {
    const auto* integer = std::get_if<int64_t>(&impl_->trace.calls[call.index()].args[arg]);
    if (integer != nullptr && (!number.isInt() || number.toInt() != *integer)) impl_->unfit = true;
    return;
  }
  const auto put = [&](size_t input, double value) { impl_->origins[input].scalar.fill_(value); };
  if (number.isDoubleList()) {
    const std::vector<double> list = number.toDoubleVector();
    if (list.size() != found->second.size()) impl_->unfit = true;
    for (size_t k = 0; k < list.size() && k < found->second.size(); ++k) put(found->second[k], list[k]);
    return;
  }
  put(found->second.front(), number.isTensor() ? number.toTensor().item<double>() : number.toScalar().toDouble());
}

bool GraphExecutable::is_unfit() const { return impl_->unfit; }

std::optional<StepResult> GraphExecutable::run(const RunInputs& inputs) {
  Impl& impl = *impl_;
  const RunValues values(impl);
  std::optional<StepResult> result;
  impl.bind_inputs(inputs.externals);
  impl.run_units(impl.early);
  if (!impl.guards_hold()) return result;
  result.emplace();
  for (size_t event = 0; event < impl.trace.events.size() && result->stopped.empty(); ++event)
    result->stopped = inputs.on_event(event, {});
  if (impl.unfit && result->stopped.empty()) result->stopped = "the optimizer passes another integer";
  if (!result->stopped.empty()) return result;
  impl.draw_seed();
  impl.run_units(impl.late);
  result = impl.finish();
  return result;
}

const Graph& GraphExecutable::graph() const { return impl_->graph; }
size_t GraphExecutable::instructions() const { return impl_->units.size(); }
size_t GraphExecutable::kernels() const {
  return static_cast<size_t>(std::ranges::count_if(impl_->units, [](const Unit& u) { return u.kernel.has_value(); }));
}
const std::vector<std::string>& GraphExecutable::fallbacks() const { return impl_->fallbacks; }

}  // namespace stepc
