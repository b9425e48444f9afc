#include "schedule/graph_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ir/alignment.h"
#include "ops/op_def.h"
#include "schedule/buffers.h"

namespace stepc {

namespace {

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

// Whether all copies between memory of the host's and the device are asynchronous in the recorded step.
bool is_copied_beside(const Trace& trace, StorageId storage) {
  const auto lies_there = [&](ValueId id) { return trace.values[id.index()].storage == storage; };
  bool found = false;
  for (const Call& call : trace.calls) {
    const bool converts = call.op == "aten::_to_copy";
    if (!converts && call.op != "aten::copy_") continue;
    bool is_of_it = false;
    for_each_value(call.args, [&](ValueId id) { is_of_it = is_of_it || lies_there(id); });
    if (!is_of_it) continue;
    const bool* const non_blocking = std::get_if<bool>(&call.args.at(converts ? 5 : 2));
    if (non_blocking == nullptr || !*non_blocking) return false;
    found = true;
  }
  return found;
}

}  // namespace

void GraphWriter::write() {
  s_.features = options_.features;
  s_.threads = options_.threads;
  s_.mesh = graph_.mesh;
  s_.device = device_of(options_);
  s_.arena_bytes = m_.layout.bytes;
  s_.live_lower_bound_bytes = m_.live_bytes;
  s_.layout_algorithm = m_.layout.algorithm;
  for (const Node& node : graph_.nodes)
    if (collective_of(node) == Collective::kWait) waited_for_.insert(node.inputs.front());
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
  out_.node_of.resize(s_.instructions.size());
  out_.operand_of = std::move(operand_of_);
}

Instruction& GraphWriter::add(Instruction::Kind kind, Source source) {
  Instruction& instruction = s_.instructions.emplace_back();
  instruction.kind = kind;
  instruction.source = std::move(source);
  return instruction;
}

void GraphWriter::add_copy(OperandId from, OperandId to, std::string why, Source source) {
  Instruction& copy = add(Instruction::Kind::kCopy, std::move(source));
  copy.op = "copy";
  copy.reads = {from};
  copy.writes = {to};
  copy.why = std::move(why);
  copy.work.bytes = 2.0 * static_cast<double>(bytes_of(s_.operands[from.index()]));
}

// Generators of the step's own begin in constant states.
void GraphWriter::add_generators(const Trace& trace) {
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

// How the program's tensors look; of a trace, all of them, for several may lie in one piece of memory. A rank's are
// parts of them, each in memory of its own.
void GraphWriter::add_inputs() {
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
      of_inputs_.push_back(add_operand(s_, std::move(operand)));
      Buffer& buffer = s_.buffers[known->second.index()];
      const Operand& added = s_.operands.back();
      buffer.bytes = std::max(buffer.bytes, static_cast<uint64_t>(extent_of(added) * size_of(added.dtype)));
    } else {
      INTERNAL_CHECK(options_.trace == nullptr || !is_whole || !is_of_program(input.kind), "{} '{}' is no external",
                     name_of(input.kind), input.key);
      of_inputs_.push_back(add_input_buffer(s_, input.kind, input.key, std::move(operand)));
      s_.buffers.back().space = !k_.on_host.empty() && k_.on_host[i] ? Space::kHost : space();
      s_.inputs.back().part = input.part;
    }
    const bool is_copied = !k_.on_host.empty() && k_.on_host[i];  // where it is read
    if (!is_copied) operand_of_[input.tensor.index()] = of_inputs_.back();
    places_of_numbers_[input.key] = input.kind == InputKind::kScalar ? static_cast<int64_t>(s_.inputs.size()) - 1 : -1;
    if (input.kind == InputKind::kRng) {
      Instruction& seed = add(Instruction::Kind::kSeed, {Phase::kForward, ""});
      seed.op = "seed";
      seed.generator = static_cast<uint32_t>(generator_of(input.key).index());
      seed.writes = {of_inputs_.back()};
      seed.why = "the step's draws follow from one number of the generator";
    }
  }
}

// Between the host and a device, asynchronously where the program does so with that memory of the host's.
void GraphWriter::add_copy_across(OperandId from, OperandId to, OperandId on_host, std::string why, Source source) {
  add_copy(from, to, std::move(why), std::move(source));
  if (options_.trace == nullptr) return;
  const Trace& trace = *options_.trace;
  const ScheduleInput& input = s_.inputs[s_.buffers[s_.operands[on_host.index()].buffer.index()].input];
  const auto is_it = [&](const External& one) { return kind_of(one.owner) == input.kind && one.key == input.key; };
  const auto external = std::ranges::find_if(trace.externals, is_it);
  if (external != trace.externals.end() && is_copied_beside(trace, trace.values[external->value.index()].storage))
    s_.instructions.back().attrs.set("non_blocking", true);
}

// Of what the program has on the host, as it lies there.
OperandId GraphWriter::copied_to_device(OperandId host, const Source& source) {
  Operand there = s_.operands[host.index()];
  there.offset = 0;
  there.buffer = add_own_buffer(extent_of(there) * size_of(there.dtype), space());
  const OperandId to = add_operand(s_, std::move(there));
  add_copy_across(host, to, host, "the device has none of the host's memory", source);
  return to;
}

bool GraphWriter::has_dtype(BufferId buffer, DType dtype) const {
  return s_.operands[s_.inputs[s_.buffers[buffer.index()].input].operand.index()].dtype == dtype;
}

// The operand of a tensor in memory.
OperandId GraphWriter::operand(TensorId tensor) {
  OperandId& known = operand_of_[tensor.index()];
  if (known.valid()) return known;
  const auto input = std::ranges::find(graph_.inputs, tensor, &GraphInput::tensor);
  if (input != graph_.inputs.end()) {
    const size_t number = static_cast<size_t>(input - graph_.inputs.begin());
    USER_CHECK(input->kind != InputKind::kIncoming && input->kind != InputKind::kHost,
               "what comes to the step while it runs lies in the host's memory");
    return known = copied_to_device(of_inputs_[number], {Phase::kForward, ""});
  }
  const TensorType& type = graph_.type(tensor);
  const ViewWindow& window = k_.lie.windows[tensor.index()];
  if (k_.is_window(tensor)) {
    const TensorId root = k_.lie.roots[tensor.index()];
    const Operand of = s_.operands[operand(root).index()];
    const int64_t begin = of.offset * size_of(of.dtype);
    INTERNAL_CHECK_EQ(begin % size_of(type.dtype), 0, "%{} does not begin at an element", tensor);
    return known = add_operand(
               s_, {of.buffer, type.dtype, window.sizes, window.strides, begin / size_of(type.dtype) + window.offset});
  }
  const Place& place = m_.places[tensor.index()];
  const auto bytes = static_cast<uint64_t>(stepc::bytes_of(type));
  switch (place.kind) {
    case Place::Kind::kInput: {
      const Operand& of = s_.operands[of_inputs_[place.input].index()];
      const int64_t begin = of.offset * size_of(of.dtype);
      return known =
                 add_operand(s_, {of.buffer, type.dtype, window.sizes, window.strides, begin / size_of(type.dtype)});
    }
    case Place::Kind::kArena:
      s_.buffers.push_back({Buffer::Kind::kArena, bytes, place.offset, 0, "", space()});
      break;
    case Place::Kind::kOwn:
      s_.buffers.push_back({Buffer::Kind::kOwn, bytes, 0, 0, "", space()});
      break;
    case Place::Kind::kNowhere:
      INTERNAL_CHECK(false, "%{} is in no memory", tensor);
  }
  return known = add_operand(s_, {BufferId(s_.buffers.size() - 1), type.dtype, window.sizes, window.strides, 0});
}

std::vector<OperandId> GraphWriter::operands(const std::vector<TensorId>& tensors) {
  std::vector<OperandId> out;
  for (TensorId tensor : tensors) out.push_back(operand(tensor));
  return out;
}

// How many units run before the guards are known; nothing that they need comes from the host.
size_t GraphWriter::units_before_guards() const {
  std::vector<bool> needed(graph_.tensors.size(), false);  // roots
  const auto need = [&](TensorId tensor) { needed[k_.lie.roots[tensor.index()].index()] = true; };
  const auto is_needed = [&](TensorId tensor) { return needed[k_.lie.roots[tensor.index()].index()]; };
  for (const GraphOutput& output : graph_.outputs)
    if (output.kind == GraphOutput::Kind::kGuard) need(output.tensor);
  size_t before = 0;
  for (size_t u = m_.graph_memory.nodes_of.size(); u-- > 0;) {
    const GraphKernels::Unit& unit = k_.units.at(m_.graph_memory.nodes_of[u].front());
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

void GraphWriter::add_unit(size_t u) {
  out_.node_of.resize(s_.instructions.size());
  write_unit(u);
  out_.node_of.resize(s_.instructions.size(), m_.graph_memory.nodes_of[u].front());
}

void GraphWriter::write_unit(size_t u) {
  const std::vector<NodeId>& nodes = m_.graph_memory.nodes_of[u];
  const GraphKernels::Unit& unit = k_.units.at(nodes.front());
  if (unit.choice.kind == KernelChoice::Kind::kNone) return;  // nothing needs it
  const Node& first = graph_.nodes[nodes.front().index()];
  if (is_host_code(first)) return add_host_code(host_code_of(first), first.source);
  const Node& main =
      has(first, Trait::kContraction) ? first : graph_.nodes[nodes.back().index()];  // what the unit is for
  if (unit.choice.kind == KernelChoice::Kind::kWait) return add_wait(first);
  std::vector<OperandId> reads = operands(unit.inputs);
  const std::vector<OperandId> writes = operands(unit.outputs);
  Scratch scratch = m_.scratch[u];
  for (uint32_t read : unit.choice.copied) reads[read] = copied_first(reads[read], scratch, main.source);
  if (unit.choice.kind == KernelChoice::Kind::kCollective && op_def(main.op).collective == Collective::kAllReduce)
    reduce_in_place(reads, writes, main.source);
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
  if (unit.choice.kind == KernelChoice::Kind::kCollective && waited_for_.contains(first.outputs.front()) &&
      unit.choice.copied.empty()) {
    instruction.stream = kExchangeStream;
    instruction.mark = static_cast<uint32_t>(marks_.size());
    marks_.emplace(first.outputs.front(), *instruction.mark);
  }
  out_.group_of.resize(s_.instructions.size(), kNoGroup);
  out_.group_of.back() = unit.group;
  const bool is_opaque = first.aten && !first.aten->rule;
  if (is_opaque && std::ranges::find(out_.opaque, first.op) == out_.opaque.end()) out_.opaque.push_back(first.op);
}

// The end of an exchange. One that sends copies of its operands has ended by then, for those are its scratch memory:
// its results are the wait's.
void GraphWriter::add_wait(const Node& wait) {
  const std::vector<OperandId> reads = operands(wait.inputs), writes = operands(wait.outputs);
  const auto mark = marks_.find(wait.inputs.front());
  std::vector<OperandId> arrived(reads.begin(), reads.begin() + static_cast<ptrdiff_t>(writes.size()));
  for (size_t k = 0; k < writes.size(); ++k) {
    if (!begin_at_one_place(s_, reads[k], writes[k])) continue;
    if (mark != marks_.end())
      arrived[k] = writes[k];
    else
      operand_of_[wait.outputs[k].index()] = reads[k];
  }
  if (mark != marks_.end()) {
    Instruction& instruction = add(Instruction::Kind::kWait, wait.source);
    instruction.op = wait.op;
    instruction.reads = reads;
    instruction.writes = arrived;
    instruction.mark = mark->second;
    instruction.why = "what the ranks have begun ends here";
  }
  for (size_t k = 0; k < writes.size(); ++k)
    if (!begin_at_one_place(s_, arrived[k], writes[k]))
      add_copy(arrived[k], writes[k], "it arrives elsewhere", wait.source);
}

// A contiguous copy of what the unit's kernel does not take as it lies, at the end of the unit's scratch memory, which
// grows smaller by it.
OperandId GraphWriter::copied_first(OperandId read, Scratch& scratch, const Source& source) {
  const Operand& from = s_.operands[read.index()];
  const auto bytes = static_cast<uint64_t>(bytes_of(from));
  scratch.bytes -= aligned(bytes);
  s_.buffers.push_back({Buffer::Kind::kArena, bytes, scratch.offset + scratch.bytes, 0, "", space()});
  const BufferId buffer(s_.buffers.size() - 1);
  const OperandId to = add_operand(s_, {buffer, from.dtype, from.sizes, contiguous_strides(from.sizes), 0});
  add_copy(read, to, "the kernel reads it contiguous", source);
  return to;
}

// An all-reduce changes memory that holds its operand, so what lies elsewhere is copied to the result's place first.
void GraphWriter::reduce_in_place(std::vector<OperandId>& reads, const std::vector<OperandId>& writes,
                                  const Source& source) {
  for (size_t k = 0; k < reads.size(); ++k) {
    if (begin_at_one_place(s_, reads[k], writes[k])) continue;
    add_copy(reads[k], writes[k], "it is reduced in the place of the result", source);
    reads[k] = writes[k];
  }
}

Instruction::Kind GraphWriter::kind_of_unit(const GraphKernels::Unit& unit, const Node& first) {
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
    case KernelChoice::Kind::kWait:
      return Instruction::Kind::kWait;
    default:
      return first.aten ? Instruction::Kind::kAten : Instruction::Kind::kOp;
  }
}

// Equal programs are there once.
void GraphWriter::add_programs(const KernelChoice& choice, Instruction& instruction) {
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
  if (choice.loss) {
    instruction.loss = choice.loss;
    for (uint32_t* of_rows : {&instruction.loss->program, &instruction.loss->last})
      if (*of_rows != kNoProgram) *of_rows = places[*of_rows];
  }
  if (!choice.matmul) return;
  instruction.matmul = choice.matmul;
  for (uint32_t& epilogue : instruction.matmul->epilogue_programs)
    if (epilogue != kNoProgram) epilogue = places[epilogue];
}

// What an ATen call may ask memory for, beside its scratch: its results, not what it is given to change.
void GraphWriter::expect_results(Instruction& instruction) const {
  if (!instruction.aten && op_def(instruction.op).has(Trait::kOverwrites)) return;
  const size_t changed = instruction.aten ? instruction.aten->writes.size() : 0;
  for (size_t w = 0; w < instruction.writes.size() - changed; ++w) {
    const Operand& operand = s_.operands[instruction.writes[w].index()];
    const Buffer& buffer = s_.buffers[operand.buffer.index()];
    if (buffer.kind == Buffer::Kind::kArena)
      instruction.allocations.push_back({buffer.bytes, buffer.offset, false, buffer.space});
    else if (buffer.kind == Buffer::Kind::kOwn)
      instruction.allocations.push_back({buffer.bytes, 0, true, buffer.space});
  }
}

}  // namespace stepc
