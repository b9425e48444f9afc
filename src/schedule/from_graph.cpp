#include "schedule/from_graph.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "ir/alignment.h"
#include "kernels/kernel_choice.h"
#include "loops/group_key.h"
#include "memory/channels_last.h"
#include "memory/graph_memory.h"
#include "memory/graph_windows.h"
#include "ops/op_def.h"
#include "schedule/buffers.h"
#include "schedule/shared_memory.h"

namespace stepc {

namespace {

constexpr uint32_t kNoGroup = UINT32_MAX;

// Draws of ATen's own go on where a generator stands: nothing is put back for them in the midst of a step.
void check_draws(const Graph& graph, const Trace& trace) {
  std::set<GeneratorId> put_back;
  for (const GeneratorLoad& load : trace.loads)
    if (load.before.index() > 0) put_back.insert(trace.states[load.state.index()].generator);
  for (const Node& node : graph.nodes)
    if (node.aten)
      for (const Arg& arg : node.aten->args)
        if (const auto* given = std::get_if<GeneratorArg>(&arg))
          USER_CHECK(!put_back.contains(given->generator), "{} draws from a generator whose state is put back",
                     node.op);
}

// "mul+add+sum": the ops that compute something, each once; a long list is cut.
std::string name_of_nodes(const Graph& graph, const std::vector<NodeId>& nodes) {
  constexpr size_t kMost = 4;
  std::vector<std::string> ops;
  for (NodeId id : nodes) {
    const Node& node = graph.nodes[id.index()];
    const bool computes = node.aten || (!op_def(node.op).has(Trait::kView) && !op_def(node.op).has(Trait::kConstant));
    if (computes && std::ranges::find(ops, node.op) == ops.end()) ops.push_back(node.op);
  }
  if (ops.empty()) return graph.nodes[nodes.front().index()].op;
  std::string name;
  for (size_t i = 0; i < std::min(ops.size(), kMost); ++i) name += (i == 0 ? "" : "+") + ops[i];
  return ops.size() > kMost ? str("{}+{} more", name, ops.size() - kMost) : name;
}

// Whether different elements of the window may be one: dimensions from the small stride to the large one must each step
// over all that the smaller ones reach. What a stride of 0 repeats does not count.
bool may_meet_itself(const Shape& sizes, const Shape& strides) {
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && strides[d] != 0) steps.emplace_back(strides[d], sizes[d]);
  std::ranges::sort(steps);
  int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

// What is decided about the fused Graph before memory is: where views point, and what runs each unit.
struct Kernels {
  Graph graph;
  GraphWindows lie;
  struct Unit {
    std::vector<TensorId> inputs, outputs;
    KernelChoice choice;
    uint32_t group = kNoGroup;
    Workspace workspace;  // of ATen calls
  };
  std::map<NodeId, Unit> units;  // by first node

  [[nodiscard]] bool is_window(TensorId tensor) const { return lie.roots[tensor.index()] != tensor; }
  [[nodiscard]] TensorLayout layout(TensorId tensor) const {
    return {graph.type(tensor), lie.windows[tensor.index()].strides};
  }
  [[nodiscard]] std::vector<TensorLayout> layouts(const std::vector<TensorId>& tensors) const {
    std::vector<TensorLayout> out;
    for (TensorId tensor : tensors) out.push_back(layout(tensor));
    return out;
  }
};

// Whether a matmul wants more scratch memory than there is for it: the library makes it then, one call a node.
bool wants_too_much(const KernelChoice& choice, const GraphScheduleOptions& options) {
  return choice.kind == KernelChoice::Kind::kMatmul && choice.scratch_bytes > options.most_scratch_bytes;
}

using ChoiceOf = std::unordered_map<std::string, KernelChoice>;  // by group_key()

const KernelChoice& choice_of(const Graph& group, const GraphScheduleOptions& options, ChoiceOf& known) {
  const auto [found, is_new] = known.try_emplace(group_key(group));
  if (is_new) found->second = choose_kernel(group, options.features, options.threads);
  return found->second;
}

// The groups with what runs them. Of one that nothing runs whole, the nodes leave it; then all is to be looked at anew.
bool choose_for_groups(Kernels& k, const GraphScheduleOptions& options, ChoiceOf& known,
                       std::vector<std::string>& one_by_one) {
  std::vector<GroupGraph> groups = extract_groups(k.graph);
  std::set<uint32_t> dissolved;
  size_t next = 0;
  for (size_t n = 0; n < k.graph.nodes.size(); ++n) {
    const Node& node = k.graph.nodes[n];
    if (!node.group || (n > 0 && k.graph.nodes[n - 1].group == node.group)) continue;
    GroupGraph& group = groups[next++];
    for (size_t i = 0; i < group.inputs.size(); ++i)
      if (const TensorLayout from = k.layout(group.inputs[i]); !is_contiguous(from))
        group.graph.inputs[i].strides = from.strides;
    const bool is_channels_last = k.lie.channels_last.contains(*node.group);
    for (size_t o = 0; o < group.outputs.size(); ++o)
      if (const TensorLayout to = k.layout(group.outputs[o]); !is_contiguous(to))
        group.graph.outputs[o].strides = to.strides;
    if (is_channels_last) group.graph = flattened(std::move(group.graph));
    Kernels::Unit& unit = k.units[NodeId(n)];
    unit.inputs = group.inputs;
    unit.outputs = group.outputs;
    unit.group = *node.group;
    const auto refused = options.refused.find(*node.group);
    if (options.is_plain)
      unit.choice = choose_node_calls(group.graph);
    else if (refused == options.refused.end())
      unit.choice = choice_of(group.graph, options, known);
    if (is_channels_last) unit.choice.why += ", over channels-last tensors as they lie";
    const bool too_much = wants_too_much(unit.choice, options);
    const bool runs = unit.choice.kind != KernelChoice::Kind::kNone && !too_much;
    if (runs && refused == options.refused.end()) continue;
    if (group.outputs.empty()) continue;  // nothing needs it
    dissolved.insert(*node.group);
    const std::string& why = refused == options.refused.end() ? unit.choice.why : refused->second;
    if (!too_much && (refused != options.refused.end() || !is_matmul_group(group.graph) || has_epilogue(group.graph)))
      one_by_one.push_back(str("group {} ({}): {}", *node.group, node.op, why));
  }
  for (Node& node : k.graph.nodes)
    if (node.group && dissolved.contains(*node.group)) node.group.reset();
  return dissolved.empty();
}

Kernels choose_kernels(Graph graph, const GraphScheduleOptions& options, GraphSchedule& out) {
  Kernels k;
  k.graph = std::move(graph);
  if (options.is_plain)
    for (Node& node : k.graph.nodes)
      if (has(node, Trait::kContraction)) node.group.reset();  // what finishes it is a group without it
  ChoiceOf known;
  do {
    k.units.clear();
    k.lie = graph_windows(k.graph);
  } while (!choose_for_groups(k, options, known, out.one_by_one));
  for (size_t n = 0; n < k.graph.nodes.size(); ++n) {
    const Node& node = k.graph.nodes[n];
    if (node.group || (is_view(node) && !k.lie.copied_views[n])) continue;
    Kernels::Unit& unit = k.units[NodeId(n)];
    unit.inputs = node.inputs;
    unit.outputs = node.outputs;
    if (is_host_code(node)) continue;
    const std::vector<TensorLayout> layouts = k.layouts(node.inputs);
    unit.choice = choose_kernel(node, layouts, options.features, options.threads);
    if (wants_too_much(unit.choice, options)) {
      unit.choice = {};
      unit.choice.why = "the blocked kernel's scratch memory would lift the step above what it may take";
    }
    if (unit.choice.kind != KernelChoice::Kind::kAten) continue;
    if (const auto known = known_workspace(node, layouts)) {
      unit.workspace = *known;
      continue;
    }
    UnknownWorkspace call = unknown_workspace(node, layouts, k.layouts(node.outputs), options.threads);
    const auto found = options.workspaces.find(call.key);
    unit.workspace = found == options.workspaces.end() ? workspace_by_rule(call) : found->second;
    if (found == options.workspaces.end()) out.unknown.push_back(std::move(call));
  }
  return k;
}

// Where a tensor that is no window lies.
struct Place {
  enum class Kind : uint8_t { kNowhere, kArena, kInput, kOwn };
  Kind kind = Kind::kNowhere;
  uint32_t input = 0;   // kInput
  uint64_t offset = 0;  // kArena
};

struct Memory {
  GraphMemory graph_memory;
  UnitOrder order;
  Layout layout;
  uint64_t live_bytes = 0;       // the largest sum: no layout is smaller
  std::vector<Place> places;     // by tensor
  std::vector<Scratch> scratch;  // by unit
};

uint64_t worker_bytes(const Kernels::Unit& unit, int threads) {
  return aligned(unit.workspace.worker_bytes) * static_cast<uint64_t>(std::max(threads - 1, 0));
}

// What the program is given, made as it is: its memory is the program's from the start.
void find_own(const Kernels& k, std::vector<Place>& places) {
  const auto find = [&](TensorId tensor, const Shape& strides) {
    if (!tensor.valid() || k.is_window(tensor)) return;
    const Node* made = k.graph.producer(tensor);
    if (made == nullptr || is_host_code(*made)) return;
    const Shape wanted = strides.empty() ? contiguous_strides(k.graph.shape(tensor)) : strides;
    if (k.lie.windows[tensor.index()].strides == wanted) places[tensor.index()].kind = Place::Kind::kOwn;
  };
  for (const GraphOutput& output : k.graph.outputs)
    if (output.kind == GraphOutput::Kind::kReturn || output.kind == GraphOutput::Kind::kRebind)
      find(output.tensor, output.strides);
  for (const Node& node : k.graph.nodes)
    if (is_host_code(node))
      for (const HostCode::Given& given : host_code_of(node).given) find(given.tensor, given.strides);
}

bool may_share(const Kernels& k, const std::vector<Place>& places, NodeId node, TensorId operand, TensorId result) {
  if (places[result.index()].kind == Place::Kind::kOwn) return false;
  const Kernels::Unit& unit = k.units.at(node);
  const bool says_pairs =
      unit.choice.kind == KernelChoice::Kind::kGenerated || unit.choice.kind == KernelChoice::Kind::kNodes ||
      unit.choice.kind == KernelChoice::Kind::kMatmul || unit.choice.kind == KernelChoice::Kind::kCollective;
  if (!says_pairs) {
    const Node& alone = k.graph.nodes[node.index()];
    if (k.lie.windows[operand.index()].strides != k.lie.windows[result.index()].strides) return false;
    return alone.aten || op_def(alone.op).has(Trait::kOverwrites);
  }
  const auto write = static_cast<uint32_t>(std::ranges::find(unit.outputs, result) - unit.outputs.begin());
  for (uint32_t read = 0; read < unit.inputs.size(); ++read)
    if (k.lie.roots[unit.inputs[read].index()] == operand &&
        std::ranges::find(unit.choice.in_place, std::pair(read, write)) == unit.choice.in_place.end())
      return false;
  return true;
}

// Of ATen calls: all that is not a new content of what they are given.
bool brings_memory(const Kernels& k, NodeId node, TensorId result) {
  if (k.units.at(node).choice.kind != KernelChoice::Kind::kAten) return false;
  const Node& alone = k.graph.nodes[node.index()];
  if (!alone.aten) return !op_def(alone.op).has(Trait::kOverwrites);
  const auto place = static_cast<size_t>(std::ranges::find(alone.outputs, result) - alone.outputs.begin());
  return place < alone.outputs.size() - alone.aten->writes.size();
}

// Units in the order in which graph_memory has put them, which is program order but for what guards need.
Memory plan_memory(const Kernels& k, int threads) {
  Memory m;
  m.places.resize(k.graph.tensors.size());
  find_own(k, m.places);
  m.graph_memory = graph_memory(
      k.graph, {.workspace_bytes =
                    [&](NodeId node) {
                      const auto unit = k.units.find(node);
                      if (unit == k.units.end()) return uint64_t{0};
                      return aligned(unit->second.choice.scratch_bytes) + aligned(unit->second.workspace.bytes) +
                             worker_bytes(unit->second, threads);
                    },
                .may_share = [&](NodeId node, TensorId operand,
                                 TensorId result) { return may_share(k, m.places, node, operand, result); },
                .brings_memory = [&](NodeId node, TensorId result) { return brings_memory(k, node, result); },
                .lies_as =
                    [&](TensorId result, uint32_t input) {
                      return k.lie.windows[result.index()].strides ==
                             k.lie.windows[k.graph.inputs[input].tensor.index()].strides;
                    },
                .copied_views = k.lie.copied_views});
  const GraphMemory& memory = m.graph_memory;
  OrderProblem problem = memory.problem;
  m.order = program_order(problem);
  for (size_t t = 0; t < m.places.size(); ++t) {
    Place& place = m.places[t];
    const uint32_t value = memory.value_of[t];
    // A value is named after one tensor; others are a group's own views of what lies there.
    if (k.is_window(TensorId(t)) || value == kNone || memory.tensor_of[value] != TensorId(t)) continue;
    const uint32_t input = memory.input_of[value];
    if (place.kind == Place::Kind::kOwn) {
      INTERNAL_CHECK_EQ(input, kNone, "what leaves the step lies in the program's memory");
      problem.values[value].bytes = 0;
      continue;
    }
    place.kind = input == kNone ? Place::Kind::kArena : Place::Kind::kInput;
    place.input = input;
  }
  const OrderIntervals intervals = intervals_of(problem, m.order);
  m.layout = plan_layout(intervals.layout);
  m.live_bytes = lower_bound(intervals.layout);
  const std::vector<uint64_t>& offsets = m.layout.offsets;
  for (size_t v = 0; v < problem.values.size(); ++v)
    if (const uint32_t interval = intervals.interval_of[v]; interval != kNone)
      m.places[memory.tensor_of[v].index()].offset = offsets[interval];
  for (size_t u = 0; u < problem.units.size(); ++u) {
    const uint32_t interval = intervals.workspace_interval_of[u];
    m.scratch.push_back({interval == kNone ? 0 : offsets[interval], problem.units[u].workspace_bytes});
  }
  return m;
}

class Writer {
 public:
  Writer(const Kernels& k, const Memory& memory, const GraphScheduleOptions& options, GraphSchedule& out)
      : k_(k), graph_(k.graph), m_(memory), options_(options), out_(out), operand_of_(graph_.tensors.size()) {}

  void write() {
    s_.features = options_.features;
    s_.threads = options_.threads;
    s_.mesh = graph_.mesh;
    s_.arena_bytes = m_.layout.bytes;
    s_.live_lower_bound_bytes = m_.live_bytes;
    s_.layout_algorithm = m_.layout.algorithm;
    if (options_.trace != nullptr) add_generators(*options_.trace);
    add_inputs();
    const size_t before = units_before_guards();
    for (size_t u = 0; u < before; ++u) add_unit(u);
    add_guards();
    if (options_.trace != nullptr) add_events(*options_.trace);
    for (size_t u = before; u < m_.graph_memory.nodes_of.size(); ++u) add_unit(u);
    add_outputs();
    add_last_updates();
    if (options_.trace != nullptr) s_.host_numbers = host_numbers(*options_.trace);
    out_.group_of.resize(s_.instructions.size(), kNoGroup);
    out_.operand_of = std::move(operand_of_);
  }

 private:
  Instruction& add(Instruction::Kind kind, Source source = {Phase::kUpdate, ""}) {
    Instruction& instruction = s_.instructions.emplace_back();
    instruction.kind = kind;
    instruction.source = std::move(source);
    return instruction;
  }
  void add_copy(OperandId from, OperandId to, std::string why) {
    Instruction& copy = add(Instruction::Kind::kCopy);
    copy.op = "copy";
    copy.reads = {from};
    copy.writes = {to};
    copy.why = std::move(why);
    copy.work.bytes = 2.0 * static_cast<double>(bytes_of(s_.operands[from.index()]));
  }

  // Generators of the step's own begin in constant states.
  void add_generators(const Trace& trace) {
    if (trace.generators.size() <= 1) return;
    s_.generators = trace.generators;
    for (const GeneratorLoad& load : trace.loads) {
      const GeneratorState& state = trace.states[load.state.index()];
      if (load.before.index() > 0 || state.kind != GeneratorState::Kind::kConstant || state.generator.index() == 0)
        continue;
      Instruction& begin = add(Instruction::Kind::kLoadGenerator, {Phase::kForward, ""});
      begin.op = "load_generator";
      begin.generator = static_cast<uint32_t>(state.generator.index());
      begin.state = static_cast<uint32_t>(s_.states.size());
      begin.why = "as the step did";
      s_.states.push_back(state.bytes);
    }
  }

  // ---- inputs

  // How the program's tensors look; of a trace, all of them, for several may lie in one piece of memory. A rank's are
  // parts of them, each in memory of its own.
  void add_inputs() {
    std::map<std::pair<InputKind, std::string>, BufferId> memory;
    const bool is_whole = graph_.mesh.axes.empty();
    if (options_.trace != nullptr && is_whole) add_trace_inputs(s_, *options_.trace, memory);
    for (uint32_t i = 0; i < graph_.inputs.size(); ++i) {
      const GraphInput& input = graph_.inputs[i];
      const TensorType& type = graph_.type(input.tensor);
      const ViewWindow& window = k_.lie.windows[input.tensor.index()];
      const auto known = memory.find({input.kind, input.key});
      Operand operand{{}, type.dtype, window.sizes, window.strides, input.offset};
      if (known != memory.end()) {
        USER_CHECK(has_dtype(known->second, type.dtype), "{} '{}' is used as another type", name_of(input.kind),
                   input.key);
        operand.buffer = known->second;
        operand_of_[input.tensor.index()] = add_operand(s_, std::move(operand));
        Buffer& buffer = s_.buffers[known->second.index()];
        const Operand& added = s_.operands.back();
        buffer.bytes = std::max(buffer.bytes, static_cast<uint64_t>(extent_of(added) * size_of(added.dtype)));
      } else {
        INTERNAL_CHECK(options_.trace == nullptr || !is_whole || !is_of_program(input.kind), "{} '{}' is no external",
                       name_of(input.kind), input.key);
        operand_of_[input.tensor.index()] = add_input_buffer(s_, input.kind, input.key, std::move(operand));
        s_.inputs.back().part = input.part;
      }
      places_of_numbers_[input.key] =
          input.kind == InputKind::kScalar ? static_cast<int64_t>(s_.inputs.size()) - 1 : -1;
      if (input.kind == InputKind::kRng) {
        Instruction& seed = add(Instruction::Kind::kSeed, {Phase::kForward, ""});
        seed.op = "seed";
        seed.generator = static_cast<uint32_t>(generator_of(input.key).index());
        seed.writes = {operand_of_[input.tensor.index()]};
        seed.why = "the step's draws follow from one number of the generator";
      }
    }
  }
  bool has_dtype(BufferId buffer, DType dtype) const {
    return s_.operands[s_.inputs[s_.buffers[buffer.index()].input].operand.index()].dtype == dtype;
  }

  // ---- operands

  // The operand of a tensor in memory.
  OperandId operand(TensorId tensor) {
    OperandId& known = operand_of_[tensor.index()];
    if (known.valid()) return known;
    const TensorType& type = graph_.type(tensor);
    const ViewWindow& window = k_.lie.windows[tensor.index()];
    if (k_.is_window(tensor)) {
      const TensorId root = k_.lie.roots[tensor.index()];
      const Operand of = s_.operands[operand(root).index()];
      const int64_t begin = of.offset * size_of(of.dtype);
      INTERNAL_CHECK_EQ(begin % size_of(type.dtype), 0, "%{} does not begin at an element", tensor);
      return known = add_operand(s_, {of.buffer, type.dtype, window.sizes, window.strides,
                                      begin / size_of(type.dtype) + window.offset});
    }
    const Place& place = m_.places[tensor.index()];
    const auto bytes = static_cast<uint64_t>(stepc::bytes_of(type));
    switch (place.kind) {
      case Place::Kind::kInput: {
        const Operand& of = s_.operands[operand_of_[graph_.inputs[place.input].tensor.index()].index()];
        const int64_t begin = of.offset * size_of(of.dtype);
        return known =
                   add_operand(s_, {of.buffer, type.dtype, window.sizes, window.strides, begin / size_of(type.dtype)});
      }
      case Place::Kind::kArena:
        s_.buffers.push_back({Buffer::Kind::kArena, bytes, place.offset, 0, ""});
        break;
      case Place::Kind::kOwn:
        s_.buffers.push_back({Buffer::Kind::kOwn, bytes, 0, 0, ""});
        break;
      case Place::Kind::kNowhere:
        INTERNAL_CHECK(false, "%{} is in no memory", tensor);
    }
    return known = add_operand(s_, {BufferId(s_.buffers.size() - 1), type.dtype, window.sizes, window.strides, 0});
  }
  std::vector<OperandId> operands(const std::vector<TensorId>& tensors) {
    std::vector<OperandId> out;
    for (TensorId tensor : tensors) out.push_back(operand(tensor));
    return out;
  }

  // ---- units

  // How many units run before the guards are known; nothing that they need comes from the host.
  size_t units_before_guards() const {
    std::vector<bool> needed(graph_.tensors.size(), false);  // roots
    const auto need = [&](TensorId tensor) { needed[k_.lie.roots[tensor.index()].index()] = true; };
    const auto is_needed = [&](TensorId tensor) { return needed[k_.lie.roots[tensor.index()].index()]; };
    for (const GraphOutput& output : graph_.outputs)
      if (output.kind == GraphOutput::Kind::kGuard) need(output.tensor);
    size_t before = 0;
    for (size_t u = m_.graph_memory.nodes_of.size(); u-- > 0;) {
      const Kernels::Unit& unit = k_.units.at(m_.graph_memory.nodes_of[u].front());
      if (std::ranges::none_of(unit.outputs, is_needed)) continue;
      before = std::max(before, u + 1);
      for (TensorId input : unit.inputs) need(input);  // a unit runs whole
    }
    const bool has_events = options_.trace != nullptr && !options_.trace->events.empty();
    for (const GraphInput& input : graph_.inputs)
      USER_CHECK(input.kind != InputKind::kScalar || !has_events || !is_needed(input.tensor),
                 "a decision depends on what '{}' supplies", input.key);
    return before;
  }

  void add_unit(size_t u) {
    const std::vector<NodeId>& nodes = m_.graph_memory.nodes_of[u];
    const Kernels::Unit& unit = k_.units.at(nodes.front());
    if (unit.choice.kind == KernelChoice::Kind::kNone) return;  // nothing needs it
    const Node& first = graph_.nodes[nodes.front().index()];
    if (is_host_code(first)) return add_host_code(host_code_of(first), first.source);
    const Node& main =
        has(first, Trait::kContraction) ? first : graph_.nodes[nodes.back().index()];  // what the unit is for
    std::vector<OperandId> reads = operands(unit.inputs);
    const std::vector<OperandId> writes = operands(unit.outputs);
    Scratch scratch = m_.scratch[u];
    if (unit.choice.kind == KernelChoice::Kind::kCollective)
      for (OperandId& read : reads) read = contiguous(read, scratch, main.source);
    Instruction& instruction = add(kind_of_unit(unit, first), main.source);
    instruction.reads = reads;
    instruction.writes = writes;
    instruction.op = unit.group == kNoGroup ? first.op : name_of_nodes(graph_, nodes);
    instruction.why = unit.choice.why;
    instruction.work = work_of(graph_, nodes, unit.inputs, unit.outputs);
    if (unit.group == kNoGroup) instruction.attrs = first.attrs;
    if (first.aten) instruction.aten = first.aten;
    add_programs(unit.choice, instruction);
    const uint64_t workers = worker_bytes(unit, options_.threads);
    instruction.scratch = {scratch.offset, scratch.bytes - workers};
    if (workers > 0)
      instruction.worker_scratch = {scratch.offset + scratch.bytes - workers, aligned(unit.workspace.worker_bytes)};
    if (unit.choice.kind == KernelChoice::Kind::kAten) expect_results(instruction);
    out_.group_of.resize(s_.instructions.size(), kNoGroup);
    out_.group_of.back() = unit.group;
    const bool is_opaque = first.aten && !first.aten->rule;
    if (is_opaque && std::ranges::find(out_.opaque, first.op) == out_.opaque.end()) out_.opaque.push_back(first.op);
  }
  // What a collective reads, copied to the end of its scratch where it lies otherwise.
  OperandId contiguous(OperandId id, Scratch& scratch, const Source& source) {
    Operand copy = s_.operands[id.index()];
    if (is_dense(copy.sizes, copy.strides)) return id;
    const auto bytes = static_cast<uint64_t>(bytes_of(copy));
    scratch.bytes -= aligned(bytes);
    s_.buffers.push_back({Buffer::Kind::kArena, bytes, scratch.offset + scratch.bytes, 0, ""});
    copy = {BufferId(s_.buffers.size() - 1), copy.dtype, copy.sizes, contiguous_strides(copy.sizes), 0};
    const OperandId to = add_operand(s_, std::move(copy));
    add_copy(id, to, "what ranks send is contiguous");
    s_.instructions.back().source = source;
    return to;
  }
  static Instruction::Kind kind_of_unit(const Kernels::Unit& unit, const Node& first) {
    switch (unit.choice.kind) {
      case KernelChoice::Kind::kGenerated:
        return Instruction::Kind::kGenerated;
      case KernelChoice::Kind::kNodes:
        return Instruction::Kind::kNodes;
      case KernelChoice::Kind::kMatmul:
        return Instruction::Kind::kMatmul;
      case KernelChoice::Kind::kAttention:
        return Instruction::Kind::kAttention;
      case KernelChoice::Kind::kLoss:
        return Instruction::Kind::kLoss;
      case KernelChoice::Kind::kCollective:
        return Instruction::Kind::kCollective;
      default:
        return first.aten ? Instruction::Kind::kAten : Instruction::Kind::kOp;
    }
  }
  // Equal programs are there once.
  void add_programs(const KernelChoice& choice, Instruction& instruction) {
    std::vector<uint32_t> places;
    for (const LoopProgram& program : choice.programs) {
      const auto [found, is_new] = program_places_.emplace(to_text(program), static_cast<uint32_t>(s_.programs.size()));
      if (is_new) s_.programs.push_back(program);
      places.push_back(found->second);
    }
    if (choice.kind == KernelChoice::Kind::kGenerated) instruction.program = places.front();
    if (choice.kind == KernelChoice::Kind::kNodes) {
      const auto [found, is_new] = node_places_.emplace(to_text(*choice.nodes), static_cast<uint32_t>(s_.nodes.size()));
      if (is_new) s_.nodes.push_back(*choice.nodes);
      instruction.nodes = found->second;
    }
    if (!choice.matmul) return;
    instruction.matmul = choice.matmul;
    for (uint32_t& epilogue : instruction.matmul->epilogue_programs)
      if (epilogue != kNoProgram) epilogue = places[epilogue];
  }
  // What an ATen call may ask memory for, beside its scratch: its results, not what it is given to change.
  void expect_results(Instruction& instruction) const {
    if (!instruction.aten && op_def(instruction.op).has(Trait::kOverwrites)) return;
    const size_t changed = instruction.aten ? instruction.aten->writes.size() : 0;
    for (size_t w = 0; w < instruction.writes.size() - changed; ++w) {
      const Operand& operand = s_.operands[instruction.writes[w].index()];
      const Buffer& buffer = s_.buffers[operand.buffer.index()];
      if (buffer.kind == Buffer::Kind::kArena)
        instruction.allocations.push_back({buffer.bytes, buffer.offset, false});
      else if (buffer.kind == Buffer::Kind::kOwn)
        instruction.allocations.push_back({buffer.bytes, 0, true});
    }
  }

  // ---- guards, host code, and what leaves the step

  void add_guards() {
    for (const GraphOutput& output : graph_.outputs) {
      if (output.kind != GraphOutput::Kind::kGuard) continue;
      const OperandId read = operand(output.tensor);
      Instruction& guard = add(Instruction::Kind::kGuard, source_of(output.tensor));
      guard.op = "guard";
      guard.reads = {read};
      guard.why = "before anything is updated";
    }
  }
  Source source_of(TensorId tensor) const {
    const Node* node = graph_.producer(tensor);
    return node == nullptr ? Source{} : node->source;
  }
  // Host code that supplies numbers alone.
  void add_events(const Trace& trace) {
    for (uint32_t e = 0; e < trace.events.size(); ++e) {
      if (trace.events[e].kind != HostEvent::Kind::kShadow) continue;
      Instruction& event = add(Instruction::Kind::kEvent);
      event.op = trace.events[e].key;
      event.event = e;
      event.in_place = is_behind_guard(trace, trace.events[e]);
      event.why = "the host supplies its numbers";
    }
  }
  // A pause, or host code that computes: what it finds in the program's memory is there by then.
  void add_host_code(const HostCode& code, const Source& source) {
    std::vector<Leaving> leaving;
    for (const HostCode::Given& one : code.given) leaving.push_back({one.tensor, one.strides});
    if (options_.trace != nullptr && code.pauses) {
      const std::vector<ValueId>& values = options_.trace->events.at(code.event).outputs;
      for (size_t g = 0; g < values.size(); ++g) leaving.at(g).value = values[g];
    }
    std::vector<OperandId> reads = hand_out(leaving);
    for (size_t g = 0; g < reads.size(); ++g)
      if (!code.pauses && reads[g].valid()) given_to_host_[{leaving[g].tensor, leaving[g].strides}] = reads[g];
    std::vector<OperandId> writes;
    std::vector<Update> updates;
    for (const HostCode::Slot& slot : code.slots) {
      const GraphInput& input = graph_.inputs[slot.input];
      writes.push_back(operand_of_[input.tensor.index()]);
      if (input.kind == InputKind::kIncoming) continue;
      written_.insert(s_.operands[writes.back().index()].buffer);
      if (slot.before != input.tensor) updates.push_back({slot.input, slot.before});
    }
    add_updates(updates);
    Instruction& host = add(code.pauses ? Instruction::Kind::kPause : Instruction::Kind::kEvent, source);
    host.op = options_.trace == nullptr ? str("{}", code.event) : options_.trace->events.at(code.event).key;
    host.event = code.event;
    host.reads = std::move(reads);
    host.writes = std::move(writes);
    host.why = code.pauses ? "the loop around the step goes on" : "the host computes with what depends on data";
  }

  BufferId add_own_buffer(int64_t bytes) {
    s_.buffers.push_back({Buffer::Kind::kOwn, static_cast<uint64_t>(bytes), 0, 0, ""});
    return BufferId(s_.buffers.size() - 1);
  }
  // A copy for the program, laid out as it saw the tensor.
  OperandId copy_for_program(TensorId tensor, const Shape& strides) {
    const TensorType& type = graph_.type(tensor);
    Operand own{{}, type.dtype, type.shape, strides, 0};
    if (may_meet_itself(type.shape, strides)) own.strides = contiguous_strides(type.shape);
    own.buffer = add_own_buffer(extent_of(own) * size_of(own.dtype));
    const OperandId to = add_operand(s_, std::move(own));
    add_copy(operand(tensor), to, "the program keeps it");
    return to;
  }
  struct Leaving {
    TensorId tensor;  // invalid: nothing leaves
    Shape strides;    // how the program sees it; empty: contiguous
    ValueId value;    // what it is in the trace
    OperandId there;  // it has left before
  };
  // What leaves at one time. Those that lie in one memory in the program do so here.
  std::vector<OperandId> hand_out(const std::vector<Leaving>& leaving) {
    std::vector<SharedMemory> shared;
    if (options_.trace != nullptr && graph_.mesh.axes.empty()) {
      std::vector<ValueId> values;
      for (const Leaving& one : leaving) values.push_back(one.value);
      shared = shared_memories(*options_.trace, values);
    }
    std::vector<bool> are_windows(leaving.size(), false);
    for (const SharedMemory& memory : shared)
      for (const SharedMemory::Window& window : memory.windows) are_windows[window.tensor] = true;
    std::set<TensorId> given;
    std::vector<OperandId> out;
    for (const Leaving& one : leaving) {
      const bool waits = one.there.valid() || are_windows[out.size()];
      out.push_back(waits ? one.there : handed_out(one, given));
    }
    for (const SharedMemory& memory : shared) {
      Operand all{{}, graph_.type(leaving[memory.windows.front().tensor].tensor).dtype, {}, {}, 0};
      if (memory.holder)
        all = s_.operands[out[*memory.holder].index()];
      else
        all.buffer = add_own_buffer(memory.elements * size_of(all.dtype));
      for (const SharedMemory::Window& window : memory.windows) {
        const Leaving& one = leaving[window.tensor];
        Operand part{all.buffer, all.dtype, graph_.shape(one.tensor), seen(one), all.offset + window.offset};
        out[window.tensor] = add_operand(s_, std::move(part));
        if (!memory.holder) add_copy(operand(one.tensor), out[window.tensor], "the program keeps it");
      }
    }
    return out;
  }
  [[nodiscard]] Shape seen(const Leaving& one) const {
    return one.strides.empty() ? contiguous_strides(graph_.shape(one.tensor)) : one.strides;
  }
  OperandId handed_out(const Leaving& one, std::set<TensorId>& given) {
    if (!one.tensor.valid()) return {};
    const bool is_own = !k_.is_window(one.tensor) && m_.places[one.tensor.index()].kind == Place::Kind::kOwn;
    if (is_own && k_.lie.windows[one.tensor.index()].strides == seen(one) && given.insert(one.tensor).second)
      return operand(one.tensor);
    return copy_for_program(one.tensor, seen(one));
  }
  void add_outputs() {
    std::vector<Leaving> leaving;
    size_t returned = 0;
    for (const GraphOutput& output : graph_.outputs) {
      ScheduleOutput out;
      Leaving one{output.tensor, output.strides, {}, {}};
      switch (output.kind) {
        case GraphOutput::Kind::kRebind:
          out = {ScheduleOutput::Kind::kRebind, {}, output.owner, output.key, {}};
          one.there = rebound(output);
          break;
        case GraphOutput::Kind::kReturn:
          if (options_.trace != nullptr) one.value = options_.trace->outputs.at(returned++);
          break;
        case GraphOutput::Kind::kNumber:
          out.kind = ScheduleOutput::Kind::kNumber;
          one.there = operand(output.tensor);
          break;
        default:
          continue;
      }
      out.part = output.part;
      s_.outputs.push_back(std::move(out));
      leaving.push_back(std::move(one));
    }
    const std::vector<OperandId> operands = hand_out(leaving);
    for (size_t i = 0; i < operands.size(); ++i) s_.outputs[i].operand = operands[i];
  }
  // A gradient that an optimizer was given is the one that is left behind. Invalid: none was.
  [[nodiscard]] OperandId rebound(const GraphOutput& output) const {
    const auto known = given_to_host_.find({output.tensor, output.strides});
    return known == given_to_host_.end() ? OperandId() : known->second;
  }

  struct Update {
    uint32_t input;
    TensorId tensor;
  };
  // Everything that leaves has been read. An update may stand for what another one writes over: that is copied first.
  void add_updates(const std::vector<Update>& updates) {
    std::set<BufferId> written;
    std::vector<std::pair<OperandId, OperandId>> copies;  // from, to
    for (const Update& update : updates) {
      const OperandId to = operand_of_[graph_.inputs[update.input].tensor.index()];
      const BufferId buffer = s_.operands[to.index()].buffer;
      written.insert(buffer);
      const OperandId from = operand(update.tensor);
      const bool is_there = s_.operands[from.index()].buffer == buffer && is_in_place(update);
      if (!is_there) copies.emplace_back(from, to);
    }
    for (auto& [from, to] : copies) {
      const Operand source = s_.operands[from.index()];
      if (!written.contains(source.buffer)) continue;
      Operand own{{}, source.dtype, source.sizes, contiguous_strides(source.sizes), 0};
      own.buffer = add_own_buffer(bytes_of(own));
      const OperandId aside = add_operand(s_, std::move(own));
      add_copy(from, aside, "another update writes over it");
      from = aside;
    }
    for (const auto& [from, to] : copies) add_copy(from, to, "an update that could not be made in place");
    written_.merge(written);
  }
  void add_last_updates() {
    std::vector<Update> updates;
    for (const GraphOutput& output : graph_.outputs)
      if (output.kind == GraphOutput::Kind::kUpdate) updates.push_back({output.input, output.tensor});
    add_updates(updates);
    for (ScheduleInput& input : s_.inputs) input.written = written_.contains(s_.operands[input.operand.index()].buffer);
  }
  bool is_in_place(const Update& update) const {
    const Place& place = m_.places[k_.lie.roots[update.tensor.index()].index()];
    return place.kind == Place::Kind::kInput && place.input == update.input;
  }

  std::vector<HostNumber> host_numbers(const Trace& trace) const {
    std::vector<HostNumber> out;
    for (const HostEvent& event : trace.events) {
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
        if (std::ranges::find(event.own_calls, CallId(c)) != event.own_calls.end()) continue;  // the host runs it
        const std::vector<Arg>& args = trace.calls[c].args;
        for (uint32_t a = 0; a < args.size(); ++a) {
          HostNumber number{CallId(c), a, {}, {}, {}};
          const auto add = [&](const std::string& key) {
            const auto found = places_of_numbers_.find(key);
            const bool is_there = found != places_of_numbers_.end() && found->second >= 0;
            if (is_there) number.inputs.push_back(static_cast<uint32_t>(found->second));
            return is_there;
          };
          if (!add(host_number_key(event, CallId(c), a)))
            for (size_t k = 0; add(host_number_key(event, CallId(c), a, k));) ++k;
          if (const auto* integer = std::get_if<int64_t>(&args[a])) number.integer = *integer;
          if (!number.inputs.empty() || number.integer) out.push_back(std::move(number));
        }
      }
    }
    return out;
  }

  const Kernels& k_;
  const Graph& graph_;
  const Memory& m_;
  const GraphScheduleOptions& options_;
  GraphSchedule& out_;
  Schedule& s_ = out_.schedule;
  std::vector<OperandId> operand_of_;  // by tensor
  std::set<BufferId> written_;         // of the program
  std::map<std::pair<TensorId, Shape>, OperandId> given_to_host_;
  std::map<std::string, int64_t> places_of_numbers_;  // inputs of the host, by key
  std::map<std::string, uint32_t> program_places_;    // by text
  std::map<std::string, uint32_t> node_places_;       // by text
};

}  // namespace

GraphSchedule schedule_graph(Graph graph, const GraphScheduleOptions& options) {
  if (options.trace != nullptr) check_draws(graph, *options.trace);
  GraphSchedule out;
  const Kernels kernels = choose_kernels(std::move(graph), options, out);
  const Memory memory = plan_memory(kernels, options.threads);
  Writer(kernels, memory, options, out).write();
  out.nodes = kernels.graph.nodes.size();
  out.narrow = std::ranges::any_of(kernels.graph.tensors, [](const GraphTensor& tensor) {
    return is_floating(tensor.type.dtype) && size_of(tensor.type.dtype) < 4;
  });
  out.memory = memory_report(kernels.graph, memory.graph_memory, memory.order, memory.layout.bytes);
  return out;
}

}  // namespace stepc
