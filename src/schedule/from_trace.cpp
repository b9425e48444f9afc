#include "schedule/from_trace.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "ir/agree.h"
#include "ir/alignment.h"
#include "memory/layout.h"
#include "schedule/buffers.h"

namespace stepc {

namespace {

// The calls that the program's host code makes itself: those of eager events, and the own calls of shadow events.
std::vector<bool> calls_left_out(const Trace& trace) {
  std::vector<bool> out(trace.calls.size(), false);
  for (const HostEvent& event : trace.events) {
    for (CallId call : event.own_calls) out[call.index()] = true;
    if (event.kind == HostEvent::Kind::kEager)
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) out[c] = true;
  }
  for (size_t c = 0; c < out.size(); ++c)
    if (makes_host_data(trace, trace.calls[c])) out[c] = true;
  return out;
}

class TraceWriter {
 public:
  TraceWriter(const Trace& trace, const Features& features, int threads)
      : trace_(trace),
        left_out_(calls_left_out(trace)),
        events_of_data_(events_of_host_data(trace)),
        made_(trace.storages.size(), false) {
    s_.features = features;
    s_.threads = threads;
  }

  Schedule write() {
    plan_memory();
    add_buffers();
    for (size_t v = 0; v < trace_.values.size(); ++v) add_value(trace_.values[v]);
    for (const ScheduleInput& input : s_.inputs) made_[storage_of_input(input).index()] = true;
    for (const External& external : trace_.externals) made_[value(external.value).storage.index()] = true;
    s_.generators = trace_.generators;
    for (const GeneratorState& state : trace_.states) s_.states.push_back(state.bytes);
    s_.numbers = static_cast<uint32_t>(trace_.reads.size());
    for (uint32_t r = 0; r < trace_.reads.size(); ++r) number_of_[trace_.reads[r].call] = r;
    save_states(GeneratorState::Kind::kInitial);
    for (size_t c = 0; c < trace_.calls.size(); ++c) {
      between_calls(c);
      add_call(CallId(c));
    }
    between_calls(trace_.calls.size());
    add_outputs();
    mark_written();
    s_.host_numbers = host_numbers();
    return std::move(s_);
  }

 private:
  [[nodiscard]] const Value& value(ValueId id) const { return trace_.values[id.index()]; }
  [[nodiscard]] StorageId storage_of_input(const ScheduleInput& input) const {
    return storage_of_.at(s_.operands[input.operand.index()].buffer);
  }

  // ---- memory

  // Offsets for what the arena holds: allocations in the trace's order, then the workers' scratch.
  void plan_memory() {
    const auto workers = static_cast<uint64_t>(std::max(s_.threads - 1, 0));
    LayoutProblem problem, of_device;
    problem.alignment = kAlignment;
    of_device.alignment = kDeviceAlignment;
    for (const Allocation& allocation : trace_.allocations)
      if (!allocation.kept && !left_out_[allocation.call.index()])
        (allocation.space == Space::kDevice ? of_device : problem)
            .intervals.push_back({allocation.bytes, allocation.first, allocation.last});
    if (workers > 0)
      for (const WorkerScratch& scratch : trace_.scratch)
        if (!left_out_[scratch.call.index()])
          problem.intervals.push_back({aligned(scratch.bytes) * workers, scratch.first, scratch.last});
    const Layout layout = plan_layout(problem);
    s_.arena_bytes = layout.bytes;
    s_.layout_algorithm = layout.algorithm;
    s_.live_lower_bound_bytes = lower_bound(problem);
    Layout device_layout;
    if (!trace_.device.empty()) {
      device_layout = plan_layout(of_device);
      s_.device = trace_.device;
      s_.device_begin = aligned_on_device(layout.bytes);
      s_.arena_bytes = s_.device_begin + device_layout.bytes;
      s_.layout_algorithm = device_layout.algorithm;
      s_.live_lower_bound_bytes += lower_bound(of_device);
    }
    size_t interval = 0, device_interval = 0;
    for (const Allocation& allocation : trace_.allocations) {
      if (left_out_[allocation.call.index()]) continue;
      PlannedAllocation planned{allocation.bytes, 0, allocation.kept, allocation.space};
      if (!allocation.kept)
        planned.offset = allocation.space == Space::kDevice ? s_.device_begin + device_layout.offsets[device_interval++]
                                                            : layout.offsets[interval++];
      if (allocation.storage.valid()) offset_of_[allocation.storage] = planned.offset;
      allocations_[allocation.call].push_back(planned);
    }
    if (workers > 0)
      for (const WorkerScratch& scratch : trace_.scratch)
        if (!left_out_[scratch.call.index()])
          scratch_[scratch.call] = {layout.offsets[interval++], aligned(scratch.bytes)};
    INTERNAL_CHECK_EQ(interval, problem.intervals.size());
  }

  // One a storage, the program's first, as the inputs name them.
  void add_buffers() {
    std::map<std::pair<InputKind, std::string>, BufferId> memory;
    add_trace_inputs(s_, trace_, memory);
    buffer_of_.resize(trace_.storages.size());
    for (const External& external : trace_.externals)
      if (external.owner != Owner::kConstant)
        know(value(external.value).storage, memory.at({kind_of(external.owner), external.key}));
    for (const External& external : trace_.externals) {
      const StorageId storage = value(external.value).storage;
      if (external.owner != Owner::kConstant || buffer_of_[storage.index()].valid()) continue;
      const auto found = std::ranges::find(trace_.constants, external.key, &Constant::key);
      INTERNAL_CHECK(found != trace_.constants.end(), "constant '{}' has no bytes", external.key);
      know(storage, add_buffer({Buffer::Kind::kConstant, found->bytes.size(), 0, 0, found->bytes,
                                trace_.storages[storage.index()].space}));
    }
    for (size_t s = 0; s < trace_.storages.size(); ++s) {
      if (buffer_of_[s].valid()) continue;
      const Storage& storage = trace_.storages[s];
      const auto offset = offset_of_.find(StorageId(s));
      const bool own = storage.escapes;
      const uint64_t nowhere = own || storage.space == Space::kHost ? 0 : s_.device_begin;
      know(StorageId(s),
           add_buffer({own ? Buffer::Kind::kOwn : Buffer::Kind::kArena, storage.bytes,
                       own || offset == offset_of_.end() ? nowhere : offset->second, 0, "", storage.space}));
    }
  }
  BufferId add_buffer(Buffer buffer) {
    s_.buffers.push_back(std::move(buffer));
    return BufferId(s_.buffers.size() - 1);
  }
  void know(StorageId storage, BufferId buffer) {
    buffer_of_[storage.index()] = buffer;
    storage_of_.emplace(buffer, storage);
  }
  void add_value(const Value& v) {
    operand_of_.push_back(
        add_operand(s_, {buffer_of_[v.storage.index()], v.dtype, v.sizes, v.strides, v.offset, v.conj, v.neg}));
  }

  // ---- instructions

  Instruction& add(Instruction::Kind kind, std::string why) {
    Instruction& instruction = s_.instructions.emplace_back();
    instruction.kind = kind;
    instruction.op = name_of(kind);
    instruction.why = std::move(why);
    return instruction;
  }
  void move_state(Instruction::Kind kind, StateId state, std::string why) {
    Instruction& instruction = add(kind, std::move(why));
    instruction.state = static_cast<uint32_t>(state.index());
    instruction.generator = static_cast<uint32_t>(trace_.states[state.index()].generator.index());
  }
  void save_states(GeneratorState::Kind kind, CallId call = {}) {
    for (size_t s = 0; s < trace_.states.size(); ++s)
      if (trace_.states[s].kind == kind && (kind != GeneratorState::Kind::kAfterCall || trace_.states[s].call == call))
        move_state(Instruction::Kind::kSaveGenerator, StateId(s), "the step gives it back later");
  }

  static bool reads_number(const HostEvent& event) {
    return event.kind == HostEvent::Kind::kRead && event.own_calls.empty();
  }

  // What happens before call `c` without one: the program's host code ran.
  void between_calls(size_t c) {
    // A number is read by the call before; what the host puts back at the next one's border, it does with the number.
    for (uint32_t e = 0; e < trace_.events.size(); ++e)
      if (trace_.events[e].begin.index() == c && reads_number(trace_.events[e])) add_read(e);
    for (uint32_t e = 0; e < trace_.events.size(); ++e)
      if (trace_.events[e].begin.index() == c && trace_.events[e].kind == HostEvent::Kind::kPause) add_pause(e);
    for (const GeneratorLoad& load : trace_.loads)
      if (load.before.index() == c) move_state(Instruction::Kind::kLoadGenerator, load.state, "as the step did");
    for (uint32_t e = 0; e < trace_.events.size(); ++e) {
      const HostEvent& event = trace_.events[e];
      if (event.begin.index() != c || reads_number(event) || event.kind == HostEvent::Kind::kPause) continue;
      if (event.kind == HostEvent::Kind::kRead) {
        add_hosts_call(e);
        continue;
      }
      Instruction& instruction = add(Instruction::Kind::kEvent, "host code");
      instruction.event = e;
      instruction.op = event.key;
      instruction.in_place = event.kind == HostEvent::Kind::kShadow && is_behind_guard(trace_, event);
      if (event.kind == HostEvent::Kind::kEager)
        for (const Rebinding& gradient : event.gradients) instruction.reads.push_back(of_program(gradient.value));
      if (event.kind == HostEvent::Kind::kEager) instruction.writes = written_by(event);
    }
  }

  void add_pause(uint32_t e) {
    const HostEvent& event = trace_.events[e];
    Instruction& pause = add(Instruction::Kind::kPause, "host code");
    pause.event = e;
    pause.op = event.key;
    for (ValueId output : event.outputs) pause.reads.push_back(of_program(output));
    for (const ScheduleInput& input : s_.inputs)
      if (input.kind == InputKind::kIncoming) pause.writes.push_back(input.operand);
    save_states(GeneratorState::Kind::kResumed);
  }

  // The call before it has read the number.
  void add_read(uint32_t event) {
    Instruction& read = add(Instruction::Kind::kPause, "the program reads the number");
    read.event = event;
    read.op = trace_.events[event].key;
    read.number = number_of_.at(CallId(trace_.events[event].begin.index() - 1));
  }

  // The program makes the next call itself.
  void add_hosts_call(uint32_t event) {
    std::vector<OperandId> reads, writes;
    for (ValueId output : trace_.events[event].outputs) {
      const OperandId operand = of_program(output);
      reads.push_back(kind(operand) == Buffer::Kind::kArena ? copy_for_program(operand) : operand);
    }
    for (size_t e = 0; e < trace_.externals.size(); ++e)
      if (events_of_data_[e] == event) writes.push_back(operand_of_[trace_.externals[e].value.index()]);
    Instruction& call = add(Instruction::Kind::kPause, "the program makes the call itself");
    call.event = event;
    call.op = trace_.events[event].key;
    call.reads = std::move(reads);
    call.writes = std::move(writes);
  }

  // The program's memory that host code changes.
  std::vector<OperandId> written_by(const HostEvent& event) const {
    std::set<BufferId> buffers;
    for (size_t c = event.begin.index(); c < event.end.index(); ++c)
      for (ValueId id : trace_.calls[c].writes) buffers.insert(buffer_of_[value(id).storage.index()]);
    std::vector<OperandId> operands;
    for (BufferId buffer : buffers)
      if (const Buffer& one = s_.buffers[buffer.index()]; one.kind == Buffer::Kind::kInput)
        operands.push_back(s_.inputs[one.input].operand);
    return operands;
  }

  void add_call(CallId id) {
    const Call& call = trace_.calls[id.index()];
    const auto allocations = allocations_.find(id);
    if (left_out_[id.index()] || (is_view(trace_, call) && allocations == allocations_.end())) return;
    Instruction instruction;
    instruction.kind = Instruction::Kind::kAten;
    instruction.op = call.op;
    instruction.call = id;
    instruction.source = {call.phase, call.module};
    instruction.why = "as recorded";
    if (allocations != allocations_.end()) instruction.allocations = allocations->second;
    if (const auto scratch = scratch_.find(id); scratch != scratch_.end()) instruction.worker_scratch = scratch->second;
    instruction.aten.emplace();
    for (const Arg& arg : call.args) instruction.aten->args.push_back(argument(arg, instruction));
    for (const Arg& result : call.results) instruction.aten->results.push_back(this->result(result, instruction));
    for (ValueId written : call.writes) note_write(written, instruction);
    instruction.aten->rule = call.rule;
    instruction_of_[id] = static_cast<uint32_t>(s_.instructions.size());
    const auto number = number_of_.find(id);
    if (number != number_of_.end()) instruction.number = number->second;
    s_.instructions.push_back(std::move(instruction));
    if (number != number_of_.end() && trace_.reads[number->second].guard) add_guard(number->second);
    save_states(GeneratorState::Kind::kAfterCall, id);
  }
  void add_guard(uint32_t number) {
    const HostRead& read = trace_.reads[number];
    Instruction& guard = add(Instruction::Kind::kGuard, read.source);
    guard.number = number;
    guard.expected = number_read(trace_, read);
  }

  Arg argument(const Arg& arg, Instruction& instruction) {
    const auto read = [&](ValueId id) {
      if (!id.valid()) return ValueId();
      instruction.reads.push_back(operand_of_[id.index()]);
      return ValueId(instruction.reads.size() - 1);
    };
    if (const auto* one = std::get_if<ValueId>(&arg)) return read(*one);
    if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      std::vector<ValueId> reads;
      for (ValueId id : *list) reads.push_back(read(id));
      return reads;
    }
    if (const auto* number = std::get_if<ReadNumber>(&arg)) {
      ReadNumber counted = *number;
      const auto found = number_of_.find(number->read);
      INTERNAL_CHECK(found != number_of_.end(), "call {} reads nothing", number->read);
      counted.read = CallId(found->second);
      return counted;
    }
    return arg;
  }
  // Which argument the call writes where it lies: the first read that is this value.
  void note_write(ValueId written, Instruction& instruction) {
    const OperandId operand = operand_of_[written.index()];
    const auto found = std::ranges::find(instruction.reads, operand);
    INTERNAL_CHECK(found != instruction.reads.end(), "{} writes what it is not given", instruction.op);
    instruction.aten->writes.push_back(static_cast<uint32_t>(found - instruction.reads.begin()));
    instruction.writes.push_back(operand);
  }
  // Only what is the first on its storage is a result that has to lie somewhere.
  Arg result(const Arg& result, Instruction& instruction) {
    const auto fresh = [&](ValueId id) {
      if (!id.valid() || made_[value(id).storage.index()]) return ValueId();
      made_[value(id).storage.index()] = true;
      instruction.writes.push_back(operand_of_[id.index()]);
      return ValueId(instruction.writes.size() - 1);
    };
    if (const auto* one = std::get_if<ValueId>(&result)) {
      const ValueId made = fresh(*one);
      return made.valid() || !one->valid() ? Arg(made) : Arg(std::monostate());
    }
    if (const auto* list = std::get_if<std::vector<ValueId>>(&result)) {
      std::vector<ValueId> made;
      for (ValueId id : *list) made.push_back(fresh(id));
      return made;
    }
    return std::monostate();
  }

  // ---- what leaves the step

  OperandId of_program(ValueId id) const { return id.valid() ? operand_of_[id.index()] : OperandId(); }
  void add_outputs() {
    for (ValueId output : trace_.outputs) {
      ScheduleOutput out;
      out.operand = of_program(output);
      if (output.valid() && !is_own(out.operand)) out.operand = copy_for_program(out.operand);
      s_.outputs.push_back(std::move(out));
    }
    for (const Arg& number : trace_.numbers) {
      ScheduleOutput out;
      out.kind = ScheduleOutput::Kind::kNumber;
      out.value = number;
      if (auto* read = std::get_if<ReadNumber>(&out.value)) read->read = CallId(number_of_.at(read->read));
      s_.outputs.push_back(std::move(out));
    }
    for (const Rebinding& rebinding : trace_.rebindings) {
      ScheduleOutput out{
          ScheduleOutput::Kind::kRebind, of_program(rebinding.value), kind_of(rebinding.owner), rebinding.key, {}};
      if (out.operand.valid() && kind(out.operand) == Buffer::Kind::kConstant)
        out.operand = copy_for_program(out.operand);
      s_.outputs.push_back(std::move(out));
    }
  }
  Buffer::Kind kind(OperandId operand) const { return s_.buffers[s_.operands[operand.index()].buffer.index()].kind; }
  bool is_own(OperandId operand) const { return kind(operand) == Buffer::Kind::kOwn; }
  // Of the program's own memory the program gets a copy, as clone() makes one.
  OperandId copy_for_program(OperandId from) {
    Operand own = s_.operands[from.index()];
    own.offset = 0;
    own.conj = own.neg = false;
    if (!fills_block(own.sizes, own.strides)) own.strides = contiguous_strides(own.sizes);
    const Space space = s_.buffers[own.buffer.index()].space;
    own.buffer = add_buffer({Buffer::Kind::kOwn, static_cast<uint64_t>(bytes_of(own)), 0, 0, "", space});
    const OperandId to = add_operand(s_, std::move(own));
    Instruction& copy = add(Instruction::Kind::kCopy, "the program keeps it");
    copy.reads = {from};
    copy.writes = {to};
    return to;
  }

  void mark_written() {
    std::set<BufferId> written;
    for (const Call& call : trace_.calls)
      for (ValueId id : call.writes) written.insert(buffer_of_[value(id).storage.index()]);
    for (ScheduleInput& input : s_.inputs)
      input.written = input.kind != InputKind::kIncoming && written.contains(s_.operands[input.operand.index()].buffer);
  }

  std::vector<HostNumber> host_numbers() const {
    std::vector<HostNumber> out;
    for (const HostEvent& event : trace_.events) {
      if (event.kind != HostEvent::Kind::kShadow) continue;
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
        const auto instruction = instruction_of_.find(CallId(c));
        if (instruction == instruction_of_.end()) continue;
        const std::vector<Arg>& args = trace_.calls[c].args;
        for (uint32_t a = 0; a < args.size(); ++a)
          if (!std::holds_alternative<ValueId>(args[a]) && !std::holds_alternative<std::vector<ValueId>>(args[a]))
            out.push_back({CallId(c), a, instruction->second, {}, {}});
      }
    }
    return out;
  }

  const Trace& trace_;
  const std::vector<bool> left_out_;                         // by call
  const std::vector<std::optional<size_t>> events_of_data_;  // by external
  std::vector<bool> made_;                                   // by storage
  Schedule s_;
  std::map<CallId, std::vector<PlannedAllocation>> allocations_;
  std::map<CallId, Scratch> scratch_;
  std::map<StorageId, uint64_t> offset_of_;
  std::vector<BufferId> buffer_of_;  // by storage
  std::map<BufferId, StorageId> storage_of_;
  std::vector<OperandId> operand_of_;  // by value
  std::map<CallId, uint32_t> number_of_;
  std::map<CallId, uint32_t> instruction_of_;
};

}  // namespace

Schedule schedule_trace(const Trace& trace, const Features& features, int threads) {
  return TraceWriter(trace, features, threads).write();
}

}  // namespace stepc
