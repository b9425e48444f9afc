#include "runtime/executor.h"

#include <algorithm>
#include <exception>
#include <map>
#include <set>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/device_hook.h"
#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "comm/ranks.h"
#include "ir/agree.h"
#include "ir/alignment.h"
#include "runtime/arena.h"
#include "runtime/bind/bound_aten.h"
#include "runtime/bind/bound_kernel.h"
#include "runtime/device_graphs.h"
#include "runtime/device_guards.h"
#include "runtime/device_programs.h"
#include "schedule/verify_kernels.h"

namespace stepc {

namespace {

// Calls run below autograd and autocast, where they were recorded.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_autocast{c10::autocast_dispatch_keyset};
};

// A bound instruction: its kernel, and what must exist before the kernel runs.
struct BoundInstruction {
  std::unique_ptr<BoundKernel> kernel;                // none: the executor does it itself
  std::vector<OperandId> own;                         // writes whose memory is made for it; ATen calls bring their own
  std::vector<std::pair<size_t, OperandId>> brought;  // then: by planned allocation that outlives the step, the write
  uint64_t arena_end = 0;                             // of what it uses in the arena without asking the allocator
};

Schedule for_this_device(Schedule schedule) {
  USER_CHECK(schedule.features.sm == 0 || !schedule.device.empty(),
             "the Schedule is planned for {} and cannot run on the CPU; plan it without a target",
             to_text(schedule.features));
  if (schedule.device.empty()) return schedule;
  std::string why;
  try {
    why = install_device_hook(c10::Device(schedule.device).type());
  } catch (const c10::Error&) {
    why = "PyTorch knows no such device";
  }
  USER_CHECK(why.empty(), "the Schedule works in memory of '{}', and {}", schedule.device, why);
  return schedule;
}

// Returns nullptr for a step of one device.
Ranks* check_ranks(const Schedule& schedule, Ranks* ranks) {
  if (schedule.mesh.axes.empty()) return nullptr;
  const std::string mesh = to_text(schedule.mesh);
  USER_CHECK(ranks != nullptr, "the step is one rank's of the mesh {}, and this process is the only one; run it on {}",
             mesh, schedule.mesh.ranks());
  USER_CHECK(ranks->ranks() == schedule.mesh.ranks(), "the step is one rank's of the mesh {}, and there are {} ranks",
             mesh, ranks->ranks());
  return ranks;
}

// The state of a run from its beginning to its end, which may contain a pause.
struct Running {
  Running(BoundOperands& operands, RunInputs from, const Schedule& schedule) : inputs(std::move(from)) {
    const bool has_device = !schedule.device.empty();
    (*arena).grow_to(has_device ? schedule.device_begin : schedule.arena_bytes);
    place.host = (*arena).base();
    if (has_device) {
      on_device.emplace(c10::Device(schedule.device), schedule.arena_bytes - schedule.device_begin);
      place.device = on_device->base();
      place.device_begin = schedule.device_begin;
    }
    bound.emplace(operands, inputs.tensors, place);
    size_t result = 0;
    for (const ScheduleOutput& output : schedule.outputs) {
      if (output.kind != ScheduleOutput::Kind::kReturn || result >= inputs.results.size()) continue;
      if (const at::Tensor& memory = inputs.results[result++]; memory.defined()) bound->give(output, memory);
    }
  }
  RunInputs inputs;
  ArenaLease arena;
  std::optional<DeviceArenaLease> on_device;
  ArenaPlace place;
  std::optional<BoundOperands::Run> bound;
  size_t next = 0;       // instruction
  bool resumed = false;  // after a pause the program's graph may hold what was written before it
  std::vector<std::pair<at::Generator, GeneratorSnapshot>> before_seeds;  // what generators were
  std::optional<DryRun> dry;
  [[nodiscard]] bool is_watched() const { return inputs.times != nullptr || dry || inputs.on_written; }
};

FlightPlace place_of(const Schedule& schedule, uint32_t index) {
  const Instruction& instruction = schedule.instructions[index];
  FlightPlace place{instruction.op.empty() ? std::string(name_of(instruction.kind)) : instruction.op,
                    instruction.source.module,
                    std::string(name_of(instruction.source.phase)),
                    {}};
  if (instruction.kind != Instruction::Kind::kCollective) return place;
  for (const int64_t axis : instruction.attrs.get<std::vector<int64_t>>("axes"))
    place.group += str("{}{}", place.group.empty() ? "" : ",", schedule.mesh.axes.at(static_cast<size_t>(axis)).name);
  return place;
}

// Describes instructions as long as the executor lives.
Flight::Describe descriptions_of(const std::shared_ptr<const Schedule>& kept) {
  return [of = std::weak_ptr<const Schedule>(kept)](uint32_t index) -> std::optional<FlightPlace> {
    const std::shared_ptr<const Schedule> schedule = of.lock();
    if (schedule == nullptr || index >= schedule->instructions.size()) return std::nullopt;
    return place_of(*schedule, index);
  };
}

bool is_graph_on_device(const Schedule& schedule) { return schedule.features.sm > 0; }

// The default generator, which determines the draws of a Graph. Recorded calls find a device's generator themselves.
at::Generator generator_of(const Schedule& schedule) {
  return default_generator_of(is_graph_on_device(schedule) ? c10::Device(schedule.device) : c10::Device(at::kCPU));
}

std::vector<std::shared_ptr<const Kernel>> compile(const Schedule& schedule, KernelSources* sources) {
  verify_kernels(schedule);
  if (schedule.programs.empty() || is_graph_on_device(schedule)) return {};
  INTERNAL_CHECK(sources != nullptr, "generated kernels without a generator");
  KernelSources& kernels = *sources;
  try {
    if (kernels.before_compile)
      for (const LoopProgram& program : schedule.programs) kernels.before_compile(program);
    return kernels.compiler.compile_all(schedule.programs, static_cast<size_t>(schedule.threads));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): found again below, with all others
  }
  std::vector<std::shared_ptr<const Kernel>> compiled;
  std::map<uint32_t, std::string> refused;
  for (const LoopProgram& program : schedule.programs) {
    try {
      if (kernels.before_compile) kernels.before_compile(program);
      compiled.push_back(kernels.compiler.compile(program));
    } catch (const std::exception& error) {
      refused.emplace(static_cast<uint32_t>(&program - schedule.programs.data()), error.what());
    }
  }
  if (!refused.empty()) throw RefusedPrograms(std::move(refused));
  return compiled;
}

}  // namespace

struct Executor::Impl {
  const std::shared_ptr<const Schedule> kept;  // its rank's flight tells of it
  const Schedule& schedule;
  const std::shared_ptr<Ranks> ranks;
  Flight* const flight;  // none where nobody else is
  const uint32_t flight_number;
  const blocked::MicroKernels micro_kernels;
  const std::vector<std::shared_ptr<const Kernel>> programs;
  const std::vector<std::shared_ptr<DeviceProgram>> device_programs;
  InstructionMemory memory;
  BoundOperands operands;
  std::optional<DeviceGuards> guards;  // none on the CPU and on several ranks
  std::optional<DeviceGraphs> graphs;
  RunClocks run_clocks;
  std::vector<BoundInstruction> bound;                                    // by instruction
  std::function<void(const Instruction&, const at::Tensor&)> on_written;  // of whoever made the executor
  std::map<std::pair<CallId, size_t>, size_t> host_numbers;
  std::vector<GeneratorSnapshot> states;
  RunState state;
  std::unique_ptr<Running> running;
  bool unfit = false;
  size_t failed_at = 0;

  Impl(Schedule s, KernelSources* kernels, std::shared_ptr<Ranks> all)
      : kept(std::make_shared<const Schedule>(for_this_device(std::move(s)))),
        schedule(*kept),
        ranks(std::move(all)),
        flight(ranks == nullptr ? nullptr : &ranks->flight()),
        flight_number(flight == nullptr ? 0 : flight->add_program(descriptions_of(kept))),
        micro_kernels(kernels == nullptr ? blocked::MicroKernels() : kernels->micro_kernels),
        programs(compile(schedule, kernels)),
        device_programs(is_graph_on_device(schedule) ? load_device_programs(schedule, kernels)
                                                     : std::vector<std::shared_ptr<DeviceProgram>>()),
        memory(schedule.threads),
        operands(schedule, memory),
        states(schedule.states.size()),
        state{operands, memory, std::vector<c10::IValue>(schedule.numbers), {}} {
    if (kernels != nullptr) on_written = kernels->on_written;
    for (size_t g = 0; g < std::max<size_t>(schedule.generators.size(), 1); ++g)
      state.generators.push_back(g == 0 ? at::detail::getDefaultCPUGenerator() : at::detail::createCPUGenerator());
    for (size_t i = 0; i < states.size(); ++i)
      if (!schedule.states[i].empty()) states[i] = snapshot_from_bytes(schedule.states[i]);
    for (size_t n = 0; n < schedule.host_numbers.size(); ++n)
      host_numbers[{schedule.host_numbers[n].call, schedule.host_numbers[n].arg}] = n;
    if (Ranks* const others = check_ranks(schedule, ranks.get())) {
      for (uint32_t k = 0; k < schedule.inputs.size(); ++k)
        if (schedule.inputs[k].kind == InputKind::kMesh)
          std::ranges::copy(coordinates_of(schedule.mesh, others->rank()),
                            operands.host_tensor(k).mutable_data_ptr<int64_t>());
    }
    for (const Instruction& instruction : schedule.instructions) bind(instruction);
  }

  void bind(const Instruction& instruction) {
    const KernelParts parts{schedule, programs, micro_kernels, ranks.get(),
                            is_graph_on_device(schedule) ? &device_programs : nullptr};
    BoundInstruction& one = bound.emplace_back();
    switch (instruction.kind) {
      case Instruction::Kind::kGenerated:
        one.kernel = bind_generated(instruction, parts);
        break;
      case Instruction::Kind::kNodes:
        one.kernel = bind_nodes(instruction, parts);
        break;
      case Instruction::Kind::kMatmul:
        one.kernel = bind_matmul(instruction, parts);
        break;
      case Instruction::Kind::kAttention:
        one.kernel = bind_attention(instruction, parts);
        break;
      case Instruction::Kind::kLoss:
        one.kernel = instruction.loss ? bind_chunked_loss(instruction, parts) : bind_loss(instruction, parts);
        break;
      case Instruction::Kind::kCopy:
        one.kernel = bind_copy(instruction, parts);
        break;
      case Instruction::Kind::kCollective:
        one.kernel = bind_collective(instruction, parts);
        break;
      case Instruction::Kind::kWait:
        one.kernel = bind_wait(instruction, parts);
        break;
      case Instruction::Kind::kRecord:  // instructions run in their order, in which no wait is for what comes later
        return;
      case Instruction::Kind::kOp:
        one.kernel = bind_op(instruction, parts);
        return find_brought(instruction, one);
      case Instruction::Kind::kAten:
        one.kernel = bind_aten(instruction, parts);
        return find_brought(instruction, one);
      default:
        USER_CHECK(instruction.kind < Instruction::Kind::kSend, "nothing runs a {} yet", name_of(instruction.kind));
        return;
    }
    if (instruction.scratch.bytes > 0) one.arena_end = instruction.scratch.offset + instruction.scratch.bytes;
    for (OperandId write : instruction.writes) {
      const Buffer& buffer = schedule.buffers[schedule.operands[write.index()].buffer.index()];
      if (buffer.kind == Buffer::Kind::kOwn) one.own.push_back(write);
      if (buffer.kind == Buffer::Kind::kArena)
        one.arena_end = std::max(one.arena_end, buffer.offset + aligned(buffer.bytes));
    }
  }

  void find_brought(const Instruction& instruction, BoundInstruction& one) const {
    size_t next = 0;  // a call allocates its results in their order
    for (size_t a = 0; a < instruction.allocations.size(); ++a) {
      if (!instruction.allocations[a].own) continue;
      const auto is_its = [&](OperandId write) {
        const Buffer& buffer = schedule.buffers[schedule.operands[write.index()].buffer.index()];
        return buffer.kind == Buffer::Kind::kOwn && buffer.bytes == instruction.allocations[a].bytes;
      };
      while (next < instruction.writes.size() &&
             !(instruction.writes[next].valid() && is_its(instruction.writes[next])))
        ++next;
      if (next == instruction.writes.size()) return;
      one.brought.emplace_back(a, instruction.writes[next++]);
    }
  }

  // ---- what the executor does itself

  // Returns false if the run ends here; `result` says why.
  bool act(const Instruction& instruction, StepResult& result) {
    switch (instruction.kind) {
      case Instruction::Kind::kGuard:
        return holds(instruction, result);
      case Instruction::Kind::kEvent:
        result.stopped = running->inputs.on_event(instruction.event, handed_out(instruction.reads, false));
        if (result.stopped.empty() && unfit) result.stopped = "the optimizer passes another integer";
        return result.stopped.empty();
      case Instruction::Kind::kPause:
        result.given = handed_out(instruction.reads, true);
        if (instruction.number) result.read = arg_of(state.numbers[*instruction.number]);
        result.event = instruction.event;
        result.paused = true;
        return false;
      case Instruction::Kind::kSeed: {
        const at::Generator& from = state.generators[instruction.generator];
        running->before_seeds.emplace_back(from, read_generator(from));
        const Operand& into = schedule.operands[instruction.writes[0].index()];
        const at::Tensor& seed = operands.host_tensor(schedule.buffers[into.buffer.index()].input);
        seed.mutable_data_ptr<int64_t>()[0] = drawn_number(from);
        return true;
      }
      case Instruction::Kind::kSaveGenerator:
        states[instruction.state] = read_generator(state.generators[instruction.generator]);
        return true;
      case Instruction::Kind::kLoadGenerator:
        write_generator(state.generators[instruction.generator], states[instruction.state]);
        return true;
      default:
        return true;
    }
  }

  bool holds(const Instruction& guard, StepResult& result) {
    if (!guard.number) {
      if (guards) {
        guards->ask(operands[guard.reads[0]]);
        return true;
      }
      const bool is_missed = is_graph_on_device(schedule) ? !operands[guard.reads[0]].item<bool>()
                                                          : !*static_cast<const bool*>(operands.data(guard.reads[0]));
      // All ranks of a mesh stop here or none: the guard may miss only for another rank's rows.
      const bool is_of_mesh = ranks != nullptr && schedule.mesh.ranks() > 1;
      result.missed_guard = is_of_mesh ? ranks->largest(is_missed ? 1 : 0) != 0 : is_missed;
      return !result.missed_guard;
    }
    const Arg read = arg_of(state.numbers[*guard.number]);
    if (same_number(guard.expected, read)) return true;
    result.missed_guard = true;
    result.missed_number = *guard.number;
    result.read = read;
    return false;
  }

  // Before the instruction changes what cannot be undone. Returns false if the run ends here.
  bool guards_hold_before(size_t index, StepResult& result) {
    if (guards && (index == schedule.instructions.size() || guards->must_look(index)))
      result.missed_guard = !guards->hold();
    return !result.missed_guard;
  }
  // Whether a call has raised because of what a guard finds too.
  bool misses_guard() noexcept {
    try {
      return guards && !guards->hold();
    } catch (const std::exception&) {  // the device is lost
      return false;
    }
  }

  // The tensors of the operands: an own buffer's tensor itself; for the program's memory a window, or with `copies` a
  // copy.
  std::vector<at::Tensor> handed_out(const std::vector<OperandId>& reads, bool copies) const {
    std::vector<at::Tensor> out;
    for (OperandId read : reads) {
      if (!read.valid()) {
        out.emplace_back();
        continue;
      }
      const Operand& operand = schedule.operands[read.index()];
      const Buffer::Kind kind = schedule.buffers[operand.buffer.index()].kind;
      INTERNAL_CHECK(kind != Buffer::Kind::kArena, "a tensor is handed out of the arena");
      const bool is_copied = kind == Buffer::Kind::kConstant || (copies && kind == Buffer::Kind::kInput);
      out.push_back(is_copied ? operands[read].clone() : operands.hand_out(read));
    }
    return out;
  }

  // ---- the run

  void show_written(size_t index) const {
    for (OperandId write : schedule.instructions[index].writes)
      if (write.valid()) running->inputs.on_written(index, operands[write]);
  }

  bool run_instruction(size_t index, StepResult& result) {
    const Instruction& instruction = schedule.instructions[index];
    const BoundInstruction& one = bound[index];
    if (one.kernel == nullptr) return act(instruction, result);
    memory.begin(instruction);
    for (OperandId own : one.own) operands.make_own(own);
    for (const auto& [allocation, write] : one.brought)
      if (operands.is_given(write)) memory.give(allocation, operands.data(write));
    if (one.arena_end > 0) memory.note_use(one.arena_end);
    if (running->dry)
      running->dry->run(index, *one.kernel, state);
    else
      one.kernel->run(state);
    return true;
  }

  bool watch_instruction(size_t index, StepResult& result) {
    if (running->dry) running->dry->before(index);
    RunTimes* const times = running->inputs.times;
    if (times != nullptr) times->begin_instruction(index);
    const bool goes_on = run_instruction(index, result);
    if (times != nullptr) times->end_instruction();
    if (running->inputs.on_written) show_written(index);
    if (running->dry) running->dry->after(index);
    return goes_on;
  }

  // Runs to the end, to a pause, or to where the run must stop; `result` says which.
  void advance(StepResult& result) {
    Running& run = *running;
    const bool is_watched = run.is_watched();
    const bool may_launch = graphs && run.inputs.times == nullptr && !run.inputs.on_written;
    DryRun* const dry = run.dry ? &*run.dry : nullptr;
    const size_t end = schedule.instructions.size();
    const std::function<void(size_t)> run_plainly = [&](size_t index) { run_instruction(index, result); };
    try {
      const BelowAutograd below;
      const AllocationScope scope(memory, /*watch_frees=*/false);
      for (bool goes_on = true; goes_on && run.next < end;) {
        const size_t index = run.next;
        if (is_host_code(index) || !guards_hold_before(index, result)) break;
        if (flight != nullptr) {  // the last of what it begins, which may have changed what the program has
          const size_t end_of_it = may_launch ? graphs->end_of_launch(index) : index + 1;
          flight->note(flight_number, static_cast<uint32_t>(end_of_it - 1));
        }
        operands.upload_numbers();
        if (const size_t behind = may_launch ? graphs->run(index, run_plainly, dry) : index; behind != index) {
          run.next = behind;
          continue;
        }
        goes_on = is_watched ? watch_instruction(index, result) : run_instruction(index, result);
        ++run.next;
      }
    } catch (c10::Error& error) {
      error.add_context(where(run.next));
      throw;
    } catch (const LostRank& error) {
      throw LostRank(str("{}; {}", error.what(), where(run.next)), error.lost);
    }
  }
  // Whether the instruction is host code, which runs with the program's own allocations and above autograd, as in
  // eager.
  bool is_host_code(size_t index) const {
    const Instruction::Kind kind = schedule.instructions[index].kind;
    return kind == Instruction::Kind::kEvent || kind == Instruction::Kind::kPause || kind == Instruction::Kind::kSeed;
  }
  std::string where(size_t index) const {
    const Instruction& instruction = schedule.instructions[index];
    const std::string what = instruction.call.valid()
                                 ? str("call {} {}", instruction.call, instruction.op)
                                 : str("instruction {} ({} {})", index, name_of(instruction.kind), instruction.op);
    return str("in the replayed step: {}, {} of '{}'", what, name_of(instruction.source.phase),
               instruction.source.module);
  }

  // Whether the program passes tensors in where the run has stopped; a mere read passes none.
  bool takes_incoming() const {
    const std::vector<OperandId>& writes = schedule.instructions[running->next - 1].writes;
    return std::ranges::any_of(writes, [&](OperandId write) {
      const Buffer& buffer = schedule.buffers[schedule.operands[write.index()].buffer.index()];
      return buffer.kind == Buffer::Kind::kInput && schedule.inputs[buffer.input].kind == InputKind::kIncoming;
    });
  }

  StepResult go_on() {
    StepResult result;
    try {
      bool goes_on = true;
      while (goes_on && running->next < schedule.instructions.size()) {
        advance(result);
        goes_on = result.is_whole() && guards_hold_before(running->next, result);
        if (!goes_on || running->next == schedule.instructions.size()) continue;
        const size_t index = running->next++;
        goes_on = running->is_watched() ? watch_instruction(index, result) : run_instruction(index, result);
      }
    } catch (...) {
      state.stack.clear();
      state.in_flight.clear();
      failed_at = running->next;
      if (!misses_guard()) {
        running.reset();
        throw;
      }
      result = {};
      result.missed_guard = true;
    }
    if (!result.is_whole() && !result.paused)
      for (const auto& [generator, before] : running->before_seeds) write_generator(generator, before);
    if (running->inputs.tells_autograd && !running->resumed && !running->dry && (result.is_whole() || result.paused))
      operands.bump_versions(running->inputs.tensors);
    running->resumed = true;
    if (result.paused) return result;
    if (result.is_whole()) collect(result);
    result.memory = memory.counts();
    if (graphs) result.memory.device_graphs = graphs->launches();
    if (!running->is_watched()) run_clocks.end_run();
    result.on_device = run_clocks.take_ended();
    if (running->inputs.times != nullptr) running->inputs.times->end();
    running.reset();
    return result;
  }

  Arg number_of(const ScheduleOutput& output) const {
    if (output.operand.valid()) {
      const at::Tensor& value = operands[output.operand];
      if (value.scalar_type() == at::kBool) return value.item<bool>();
      if (at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) return value.item<int64_t>();
      return value.item<double>();
    }
    const auto* read = std::get_if<ReadNumber>(&output.value);
    return read == nullptr ? output.value : arg_of(pass_on(*read, state.numbers[read->read.index()]));
  }
  void collect(StepResult& result) const {
    for (const ScheduleOutput& output : schedule.outputs) {
      switch (output.kind) {
        case ScheduleOutput::Kind::kReturn:
          result.outputs.push_back(operands.hand_out(output.operand));
          break;
        case ScheduleOutput::Kind::kRebind:
          result.rebindings.push_back({*owner_of(output.owner), output.key, operands.hand_out(output.operand)});
          break;
        case ScheduleOutput::Kind::kNumber:
          result.numbers.push_back(number_of(output));
          break;
      }
    }
  }
};

Executor::Executor(Schedule schedule, KernelSources* kernels, std::shared_ptr<Ranks> ranks,
                   const GraphUse& device_graphs)
    : impl_(std::make_unique<Impl>(std::move(schedule), kernels, std::move(ranks))) {
  Impl& impl = *impl_;
  // All ranks of a mesh look at a guard together.
  if (is_graph_on_device(impl.schedule) && impl.schedule.mesh.ranks() <= 1) impl.guards.emplace(impl.schedule);
  if (device_graphs.is_on && !impl.schedule.device.empty())
    impl.graphs.emplace(impl.schedule, impl.operands, impl.guards ? impl.guards->effects() : std::set<size_t>(),
                        device_graphs, impl.ranks != nullptr && impl.ranks->ranks() > 1);
}
Executor::~Executor() = default;

std::string Executor::why_not(const std::vector<at::Tensor>& tensors) { return impl_->operands.why_not(tensors); }

void Executor::supply(CallId call, size_t arg, const c10::IValue& number) {
  Impl& impl = *impl_;
  const auto found = impl.host_numbers.find({call, arg});
  if (found == impl.host_numbers.end()) return;  // the event's own call
  const HostNumber& into = impl.schedule.host_numbers[found->second];
  if (into.instruction) return impl.bound[*into.instruction].kernel->supply(arg, number);
  const auto put = [&](size_t k, double value) {
    const at::Tensor& tensor = impl.operands.host_tensor(into.inputs[k]);
    if (tensor.numel() == 1 && tensor.scalar_type() == c10::kDouble)  // an update has hundreds: no dispatch for these
      *tensor.mutable_data_ptr<double>() = value;
    else if (tensor.numel() == 1 && tensor.scalar_type() == c10::kFloat)
      *tensor.mutable_data_ptr<float>() = static_cast<float>(value);
    else
      tensor.fill_(value);
  };
  if (into.inputs.empty()) {
    if (!number.isInt() || number.toInt() != *into.integer) impl.unfit = true;
  } else if (number.isList()) {
    const c10::List<c10::IValue> list = number.toList();  // of double, or of Scalar
    if (list.size() != into.inputs.size()) impl.unfit = true;
    for (size_t k = 0; k < list.size() && k < into.inputs.size(); ++k) put(k, list.get(k).toScalar().toDouble());
  } else {
    put(0, number.isTensor() ? number.toTensor().item<double>() : number.toScalar().toDouble());
  }
}
bool Executor::is_unfit() const { return impl_->unfit; }

StepResult Executor::run(RunInputs given) {
  Impl& impl = *impl_;
  INTERNAL_CHECK(impl.running == nullptr, "a run begins while another one is paused");
  if (given.times != nullptr) given.times->begin(impl.schedule.device);
  if (impl.on_written)
    given.on_written = [&impl, next = std::move(given.on_written)](size_t index, const at::Tensor& written) {
      impl.on_written(impl.schedule.instructions[index], written);
      if (next) next(index, written);
    };
  impl.running = std::make_unique<Running>(impl.operands, std::move(given), impl.schedule);
  const RunInputs& inputs = impl.running->inputs;
  impl.state.generators[0] = generator_of(impl.schedule);
  for (size_t g = 0; g < inputs.generators.size(); ++g)
    if (inputs.generators[g].defined()) impl.state.generators[g] = inputs.generators[g];
  if (inputs.show_written) {
    std::vector<const BoundKernel*> kernels;
    for (const BoundInstruction& one : impl.bound) kernels.push_back(one.kernel.get());
    impl.running->dry.emplace(impl.schedule, impl.operands, kernels, inputs.show_written);
  }
  impl.memory.begin_step(impl.running->place);
  if (impl.graphs) impl.graphs->begin_run(/*is_dry=*/impl.running->dry.has_value(), inputs.step);
  if (impl.guards) impl.guards->begin_run();
  if (!impl.running->is_watched()) impl.run_clocks.begin_run(impl.schedule.device);
  return impl.go_on();
}

StepResult Executor::resume(std::vector<at::Tensor> incoming) {
  Impl& impl = *impl_;
  INTERNAL_CHECK(impl.running != nullptr, "a run goes on that was not paused");
  if (!impl.takes_incoming()) return impl.go_on();
  for (const ScheduleInput& input : impl.schedule.inputs) {
    if (input.kind != InputKind::kIncoming) continue;
    const size_t index = std::stoul(input.key);
    const Operand& operand = impl.schedule.operands[input.operand.index()];
    if (index >= incoming.size() || !incoming[index].defined() || incoming[index].strides() == operand.strides ||
        incoming[index].sizes() != c10::IntArrayRef(operand.sizes))
      continue;
    incoming[index] =
        at::empty_strided(operand.sizes, operand.strides, incoming[index].options()).copy_(incoming[index]);
  }
  if (const std::string why = impl.operands.why_not_incoming(incoming); !why.empty()) {
    abandon();
    user_error("the backward pass begins otherwise than recorded: {}", why);
  }
  impl.running->bound->resume(incoming);
  return impl.go_on();
}

void Executor::abandon() { impl_->running.reset(); }
bool Executor::is_paused() const { return impl_->running != nullptr; }

bool Executor::has_tried_graphs() const { return impl_->graphs && impl_->graphs->has_tried(); }
uint64_t Executor::graphs_recorded() const { return impl_->graphs ? impl_->graphs->recorded() : 0; }
uint64_t Executor::graphs_of_last_run() const { return impl_->graphs ? impl_->graphs->recorded_before() : 0; }
size_t Executor::failed_at() const { return impl_->failed_at; }

const Schedule& Executor::schedule() const { return impl_->schedule; }
at::Generator Executor::generator() const { return generator_of(impl_->schedule); }

}  // namespace stepc
