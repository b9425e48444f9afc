#include "runtime/executable.h"

#include <algorithm>
#include <optional>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "ir/agree.h"
#include "runtime/arena.h"
#include "runtime/bound_call.h"
#include "runtime/bound_values.h"

namespace stepc {

namespace {
// What happens between instructions, where the program's host code ran: a generator gets a state, an event runs.
struct Stop {
  size_t instruction = 0;  // before it
  ssize_t state = -1;      // index into trace.states
  ssize_t event = -1;      // or index into trace.events
};

// A run between its beginning and its end, over a pause perhaps.
struct Running {
  Running(BoundValues& values, const RunInputs& from, uint64_t arena_bytes) : inputs(from) {
    (*arena).grow_to(arena_bytes);
    bound.emplace(values, inputs.externals, (*arena).base());
  }
  RunInputs inputs;
  ArenaLease arena;
  std::optional<BoundValues::Run> bound;
  size_t instruction = 0;  // the next one
  bool resumed = false;    // after a pause the program's graph may hold what was written before it
  size_t stop = 0;
};
}  // namespace

struct Executable::Impl {
  Trace trace;
  Schedule schedule;
  PlannedMemory memory;
  BoundValues values;
  std::vector<BoundCall> calls;           // one an instruction
  std::vector<ssize_t> instruction_of;    // by call, -1: not replayed
  std::vector<Stop> stops;                // by instruction
  std::vector<GeneratorSnapshot> states;  // by trace.states: constants, and those seen in this run
  std::vector<size_t> initial_states;     // those to save when a run begins
  std::vector<size_t> resumed_states;     // and when it goes on after a pause
  std::vector<at::Generator> generators;  // of this run; the step's own ones live here
  std::vector<c10::IValue> numbers;       // what this run has read, by trace.reads
  torch::jit::Stack stack;
  std::unique_ptr<Running> running;

  Impl(Trace t, Schedule s)
      : trace(std::move(t)),
        schedule(std::move(s)),
        memory(schedule),
        values(trace, schedule),
        instruction_of(trace.calls.size(), -1),
        states(trace.states.size()),
        numbers(trace.reads.size()) {
    std::vector<bool> made(trace.storages.size(), false);
    for (size_t i = 0; i < made.size(); ++i) made[i] = trace.storages[i].external;
    std::vector<ssize_t> read_of(trace.calls.size(), -1);
    for (size_t r = 0; r < trace.reads.size(); ++r) read_of[trace.reads[r].call.index()] = static_cast<ssize_t>(r);
    for (const Instruction& instruction : schedule.instructions) {
      const size_t call = instruction.call.index();
      instruction_of[call] = static_cast<ssize_t>(calls.size());
      calls.push_back(bind_call(trace, trace.calls[call], values, read_of, made));
      calls.back().read = read_of[call];
    }
    bind_generators();
    list_stops();
  }

  void bind_generators() {
    for (size_t g = 0; g < trace.generators.size(); ++g)
      generators.push_back(g == 0 ? at::detail::getDefaultCPUGenerator() : at::detail::createCPUGenerator());
    for (size_t s = 0; s < trace.states.size(); ++s) {
      const GeneratorState& state = trace.states[s];
      switch (state.kind) {
        case GeneratorState::Kind::kInitial:
          initial_states.push_back(s);
          break;
        case GeneratorState::Kind::kResumed:
          resumed_states.push_back(s);
          break;
        case GeneratorState::Kind::kAfterCall:
          INTERNAL_CHECK(instruction_of[state.call.index()] >= 0, "a call that draws is not replayed");
          calls[static_cast<size_t>(instruction_of[state.call.index()])].saves.push_back(s);
          break;
        case GeneratorState::Kind::kConstant:
          states[s] = snapshot_from_bytes(state.bytes);
          break;
      }
    }
  }

  // The first instruction that is not before `call`.
  size_t instruction_at(CallId call) const {
    const auto found = std::partition_point(schedule.instructions.begin(), schedule.instructions.end(),
                                            [&](const Instruction& instruction) { return instruction.call < call; });
    return static_cast<size_t>(found - schedule.instructions.begin());
  }

  void list_stops() {
    for (const GeneratorLoad& load : trace.loads)
      stops.push_back({instruction_at(load.before), static_cast<ssize_t>(load.state.index()), -1});
    for (size_t e = 0; e < trace.events.size(); ++e)
      stops.push_back({instruction_at(trace.events[e].begin), -1, static_cast<ssize_t>(e)});
    std::stable_sort(stops.begin(), stops.end(),
                     [](const Stop& a, const Stop& b) { return a.instruction < b.instruction; });
  }

  void push(BoundArg& arg) {
    switch (arg.kind) {
      case BoundArg::Kind::kConstant:
        stack.push_back(arg.constant);
        return;
      case BoundArg::Kind::kValue:
        stack.emplace_back(values[arg.value]);
        return;
      case BoundArg::Kind::kRead:
        stack.push_back(pass_on(arg.number, numbers[arg.number.read.index()]));
        return;
      case BoundArg::Kind::kGenerator:
        stack.emplace_back(generators[arg.generator]);
        return;
      case BoundArg::Kind::kList:
      case BoundArg::Kind::kOptionalList:
        if (!arg.lasting) {
          stack.push_back(build_list(arg, values));
          return;
        }
        if (arg.built_for != values.generation()) {
          arg.built = build_list(arg, values);
          arg.built_for = values.generation();
        }
        stack.push_back(arg.built);
        return;
    }
  }

  void take_result(const BoundResult& result) {
    const c10::IValue& value = stack[result.position];
    const at::Tensor tensor =
        result.element < 0 ? value.toTensor() : value.toTensorVector()[static_cast<size_t>(result.element)];
    values.define(result.value, tensor);
  }

  // False: the call is a guard and read another number than recorded.
  bool run_instruction(size_t index) {
    BoundCall& call = calls[index];
    memory.begin(schedule.instructions[index]);
    stack.clear();
    for (BoundArg& arg : call.args) push(arg);
    call.op.callBoxed(&stack);
    if (call.read >= 0 && !take_number(static_cast<size_t>(call.read))) return false;
    for (const BoundResult& result : call.results) take_result(result);
    for (size_t state : call.saves) save(state);
    return true;
  }

  bool time_instruction(size_t index, RunTimes& times) {
    const double begin = times.now();
    const bool go_on = run_instruction(index);
    times.add({index, begin, times.now()});
    return go_on;
  }

  bool take_number(size_t read) {
    numbers[read] = stack.front();
    return !trace.reads[read].guard || same_number(number_read(trace, trace.reads[read]), arg_of(numbers[read]));
  }

  void save(size_t state) { states[state] = read_generator(generators[trace.states[state].generator.index()]); }

  // Instructions [begin, end): everything has been decided. Returns where it stopped: at a guard that missed, or `end`.
  size_t run_instructions(size_t begin, size_t end) {
    // Below autograd and autocast, where the calls were recorded.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
    const AllocationScope scope(memory, /*watch_frees=*/false);
    RunTimes* const times = running->inputs.times;
    size_t index = begin;
    try {
      for (; index < end; ++index)
        if (!(times == nullptr ? run_instruction(index) : time_instruction(index, *times))) break;
    } catch (c10::Error& error) {
      const Call& call = trace.calls[schedule.instructions[index].call.index()];
      error.add_context(str("in the replayed step: call {} {}, {} of '{}'", schedule.instructions[index].call, call.op,
                            name_of(call.phase), call.module));
      throw;
    }
    stack.clear();
    return index;
  }

  std::string run_event(size_t index, const RunInputs& inputs) {
    std::vector<Bound> gradients;
    const HostEvent& event = trace.events[index];
    if (event.kind == HostEvent::Kind::kEager)
      for (const Rebinding& gradient : event.gradients)
        gradients.push_back(
            {gradient.owner, gradient.key, gradient.value.valid() ? values.for_slot(gradient.value) : at::Tensor()});
    return inputs.on_event(index, gradients);
  }

  // From where the run stands to its end, a pause, or where it must stop; `result` says which.
  void advance(StepResult& result) {
    Running& run = *running;
    for (; run.stop <= stops.size(); ++run.stop) {
      const bool last = run.stop == stops.size();
      const size_t end = last ? calls.size() : stops[run.stop].instruction;
      const size_t stopped = run.instruction < end ? run_instructions(run.instruction, end) : end;
      if (stopped != end) {
        result.missed_read = static_cast<size_t>(calls[stopped].read);
        result.read = arg_of(numbers[*result.missed_read]);
        return;
      }
      run.instruction = end;
      if (last) return;
      const Stop& stop = stops[run.stop];
      if (stop.state >= 0) {
        const auto state = static_cast<size_t>(stop.state);
        write_generator(generators[trace.states[state].generator.index()], states[state]);
        continue;
      }
      const HostEvent& event = trace.events[static_cast<size_t>(stop.event)];
      if (event.kind == HostEvent::Kind::kPause) {
        for (ValueId value : event.outputs) result.given.push_back(values.hand_out(value));
        result.paused = true;
        ++run.stop;
        return;
      }
      result.stopped = run_event(static_cast<size_t>(stop.event), run.inputs);
      if (!result.stopped.empty()) return;
    }
  }

  StepResult go_on() {
    StepResult result;
    try {
      advance(result);
    } catch (...) {
      running.reset();
      throw;
    }
    if (!running->resumed) values.bump_versions(running->inputs.externals);
    running->resumed = true;
    if (result.paused) return result;
    if (!result.missed_read.has_value() && result.stopped.empty()) collect(result);
    result.memory = memory.counts();
    if (running->inputs.times != nullptr) running->inputs.times->end();
    running.reset();
    return result;
  }

  void collect(StepResult& result) const {
    for (ValueId value : trace.outputs) result.outputs.push_back(values.hand_out(value));
    for (const Arg& number : trace.numbers) {
      const auto* read = std::get_if<ReadNumber>(&number);
      if (read == nullptr) {
        result.numbers.push_back(number);
        continue;
      }
      for (size_t r = 0; r < trace.reads.size(); ++r)
        if (trace.reads[r].call == read->read) result.numbers.push_back(arg_of(pass_on(*read, numbers[r])));
    }
    for (const Rebinding& rebinding : trace.rebindings)
      result.rebindings.push_back({rebinding.owner, rebinding.key, values.for_slot(rebinding.value)});
  }
};

Executable::Executable(Trace trace, Schedule schedule)
    : impl_(std::make_unique<Impl>(std::move(trace), std::move(schedule))) {}
Executable::~Executable() = default;

std::string Executable::why_not(const std::vector<at::Tensor>& externals) { return impl_->values.why_not(externals); }

void Executable::supply(CallId call, size_t arg, const c10::IValue& number) {
  const ssize_t instruction = impl_->instruction_of[call.index()];
  if (instruction < 0) return;  // the event's own call
  BoundArg& bound = impl_->calls[static_cast<size_t>(instruction)].args[arg];
  bound.kind = BoundArg::Kind::kConstant;
  bound.constant = number;
}

StepResult Executable::run(const RunInputs& inputs) {
  Impl& impl = *impl_;
  INTERNAL_CHECK(impl.running == nullptr, "a run begins while another one is paused");
  if (inputs.times != nullptr) inputs.times->begin(/*of_graph=*/false);
  impl.running = std::make_unique<Running>(impl.values, inputs, impl.schedule.arena_bytes);
  for (size_t g = 1; g < inputs.generators.size(); ++g)
    if (inputs.generators[g].defined()) impl.generators[g] = inputs.generators[g];
  for (size_t state : impl.initial_states) impl.save(state);
  impl.memory.begin_step((*impl.running->arena).base());
  return impl.go_on();
}

StepResult Executable::resume(std::vector<at::Tensor> incoming) {
  Impl& impl = *impl_;
  INTERNAL_CHECK(impl.running != nullptr, "a run goes on that was not paused");
  for (const External& external : impl.trace.externals) {
    if (external.owner != Owner::kIncoming) continue;
    const size_t index = std::stoul(external.key);
    const Value& value = impl.trace.values[external.value.index()];
    if (index >= incoming.size() || !incoming[index].defined() || incoming[index].strides() == value.strides ||
        incoming[index].sizes() != c10::IntArrayRef(value.sizes))
      continue;
    incoming[index] = at::empty_strided(value.sizes, value.strides, incoming[index].options()).copy_(incoming[index]);
  }
  if (const std::string why = impl.values.why_not_incoming(incoming); !why.empty()) {
    abandon();
    user_error("the backward pass begins otherwise than recorded: {}", why);
  }
  impl.running->bound->resume(incoming);
  for (size_t state : impl.resumed_states) impl.save(state);
  return impl.go_on();
}

void Executable::abandon() { impl_->running.reset(); }
bool Executable::is_paused() const { return impl_->running != nullptr; }

const Trace& Executable::trace() const { return impl_->trace; }
const Schedule& Executable::schedule() const { return impl_->schedule; }

}  // namespace stepc
