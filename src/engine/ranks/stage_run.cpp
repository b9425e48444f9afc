#include "engine/ranks/stage_run.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ATen/Functions.h>

#include "aten/constants.h"
#include "aten/generator_snapshot.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/stage_budget.h"

namespace stepc {

namespace {

// The generator's states before and after the step, which draws one number, like the plan of a whole step.
std::pair<GeneratorSnapshot, GeneratorSnapshot> states_of_draws(const at::Generator& generator) {
  GeneratorSnapshot before = read_generator(generator);
  drawn_number(generator);
  return {std::move(before), read_generator(generator)};
}

}  // namespace

struct StageRun::Step {
  MicroBatchFn micro_batch;
  Probes probes;
  size_t next = 0;     // call
  uint32_t reads = 0;  // that have been made
  std::vector<at::Tensor> slots;
  struct Receive {
    std::vector<at::Tensor> tensors;
    InFlight on_the_way;
  };
  std::map<size_t, Receive> receives;  // by call
  struct Send {
    std::vector<at::Tensor> tensors;  // in use until it has ended
    InFlight on_the_way;
  };
  std::map<uint32_t, Send> sends;  // by message
  std::optional<std::pair<GeneratorSnapshot, GeneratorSnapshot>> draws;
  std::map<std::pair<uint32_t, int64_t>, at::Tensor> results;  // by returned tensor and micro-batch
  uint64_t bytes = 0, most_bytes = 0, graphs_launched = 0;
  double run_seconds = 0, waited_seconds = 0;

  void wait_for(InFlight& on_the_way) {
    const auto begin = Clock::now();
    on_the_way.end();
    waited_seconds += seconds_since(begin);
  }
};

StageRun::StageRun(StageParts parts, const StageRanks& ranks, KernelSources& kernels, const CompileOptions& options,
                   const Verify& verify, ShardedState& state, uint64_t held)
    : parts_(std::move(parts)),
      ranks_(ranks),
      device_(options.memory.device.empty() ? c10::Device(at::kCPU) : c10::Device(options.memory.device)),
      keeps_slots_(options.device_graphs && !device_.is_cpu()) {
  stepc::verify(parts_.program);
  INTERNAL_CHECK_EQ(parts_.program.ranks(), ranks_.count);
  std::string text = to_text(parts_.program);
  for (const StageValue& value : parts_.cut.values) text += stepc::to_text(value.type) + "\n";
  if (const auto other = find_unlike(*ranks_.all, hash_text(hash_bytes(std::as_bytes(std::span(text))))))
    user_error(
        "rank {} came to another order of its pipeline's calls ({}) than rank 0 ({}): all ranks want the same "
        "stepc and configuration",
        other->rank, other->its, other->first);
  place_calls();
  programs_.resize(parts_.cut.functions.size());
  for (size_t f = 0; f < parts_.cut.functions.size(); ++f) {
    if (parts_.program.functions[f].rank != ranks_.own) continue;
    CompileOptions own = options;
    own.function = &parts_.cut.functions[f].graph;
    own.moving_tensors = std::min<size_t>(options.moving_tensors, parts_.cut.batch);
    if (keeps_slots_) own.lasting_results = parts_.cut.functions[f].returns.size();
    own.budget = budget_of_function(options.budget, *own.function, held + planned_bytes());
    programs_[f] = std::make_unique<RankProgram>(kernels, own, verify, ranks_.stage, state);
  }
}

StageRun::~StageRun() = default;

at::Tensor StageRun::empty_value(const TensorType& type) const {
  return at::empty(type.shape, at::TensorOptions(device_).dtype(scalar_type_of(type.dtype)));
}

void StageRun::place_calls() {
  std::map<uint32_t, std::map<std::vector<uint32_t>, uint32_t>> known;  // by function
  for (const StageCall& call : calls()) {
    std::vector<uint32_t> slots;
    for (const auto* list : {&call.reads, &call.writes})
      for (const SlotValue& one : *list) slots.push_back(one.slot);
    auto& of_function = known[call.function];
    const bool is_placed = keeps_slots_ && call.kind == StageCall::Kind::kRun;
    places_.push_back(
        is_placed ? of_function.try_emplace(slots, static_cast<uint32_t>(of_function.size())).first->second : 0);
  }
  slots_.resize(parts_.program.slots[static_cast<size_t>(ranks_.own)]);
}

at::Tensor& StageRun::slot_memory(const SlotValue& one) {
  at::Tensor& memory = slots_[one.slot];
  if (!memory.defined()) memory = empty_value(parts_.cut.values[one.value].type);
  return memory;
}

void StageRun::put(const SlotValue& one, const at::Tensor& value) {
  at::Tensor& slot = step_->slots[one.slot];
  slot = value.contiguous();
  if (!keeps_slots_) return;
  at::Tensor& memory = slot_memory(one);
  if (memory.const_data_ptr() != slot.const_data_ptr()) memory.copy_(slot, /*non_blocking=*/true);
  slot = memory;
}

void StageRun::begin_receive(size_t call) {
  Step& step = *step_;
  if (step.receives.contains(call)) return;
  const StageCall& receive = calls()[call];
  std::vector<at::Tensor> tensors;
  for (const SlotValue& one : receive.writes) tensors.push_back(empty_value(parts_.cut.values[one.value].type));
  InFlight on_the_way = messages_across_stages(ranks_).begin_receive(
      str("{} of micro-batch {}", parts_.cut.functions[receive.function].name, receive.micro_batch), tensors,
      receive.peer, static_cast<int>(receive.message));
  step.receives.emplace(call, Step::Receive{std::move(tensors), std::move(on_the_way)});
}

void StageRun::run_function(size_t c) {
  const StageCall& call = calls()[c];
  Step& step = *step_;
  const Probes& probes = step.probes;
  const StageFunction& function = parts_.cut.functions[call.function];
  RankProgram& program = *programs_[call.function];
  std::vector<at::Tensor> tensors = step.micro_batch(call.micro_batch);
  tensors.resize(parts_.cut.batch);
  for (const SlotValue& one : call.reads) tensors.push_back(step.slots[one.slot]);
  PartOfStep part{.step = steps_, .place = places_[c]};
  if (keeps_slots_) {
    part.results.resize(function.returns.size());
    for (const SlotValue& one : call.writes) part.results.push_back(slot_memory(one));
  }
  if (step.draws) write_generator(draws(), step.draws->first);
  StepResult result =
      program.step(tensors, probes.times != nullptr ? &(*probes.times)[&program] : nullptr,
                   probes.on_written ? probes.on_written(program, call.micro_batch, call.function) : nullptr, part);
  INTERNAL_CHECK_EQ(result.outputs.size(), function.returns.size() + function.gives.size());
  step.graphs_launched += result.memory.device_graphs;
  for (size_t r = 0; r < function.returns.size(); ++r)
    step.results[{function.returns[r], call.micro_batch}] = result.outputs[r];
  for (size_t g = 0; g < function.gives.size(); ++g) put(call.writes[g], result.outputs[function.returns.size() + g]);
}

std::vector<at::Tensor> StageRun::run(const MicroBatchFn& micro_batch, const Probes& probes) {
  try {
    begin(micro_batch, probes);
    return end();
  } catch (...) {
    step_.reset();
    throw;
  }
}

void StageRun::begin(MicroBatchFn micro_batch, const Probes& probes) {
  ++steps_;
  step_ = std::make_unique<Step>();
  step_->micro_batch = std::move(micro_batch);
  step_->probes = probes;
  step_->slots.resize(parts_.program.slots[static_cast<size_t>(ranks_.own)]);
  if (parts_.cut.draws) step_->draws = states_of_draws(draws());
}

size_t StageRun::end_of_calls(size_t from, uint32_t reads) const {
  const auto waits = [&](const StageCall& call) { return parts_.cut.functions[call.function].reads > reads; };
  return static_cast<size_t>(std::find_if(calls().begin() + static_cast<ptrdiff_t>(from), calls().end(), waits) -
                             calls().begin());
}

void StageRun::go_on(uint32_t reads) {
  const auto began = Clock::now();
  step_->reads = reads;
  for (const size_t end = end_of_calls(step_->next, reads); step_->next < end; ++step_->next)
    make_call(step_->next, end);
  step_->run_seconds += seconds_since(began);
}

void StageRun::make_call(size_t c, size_t end) {
  Step& step = *step_;
  const StageCall& call = calls()[c];
  // The next message is received while this call runs.
  for (size_t next = c; next < end; ++next)
    if (calls()[next].kind == StageCall::Kind::kReceive) {
      begin_receive(next);
      break;
    }
  switch (call.kind) {
    case StageCall::Kind::kRun:
      run_function(c);
      break;
    case StageCall::Kind::kSend: {
      std::vector<at::Tensor> tensors;
      for (const SlotValue& one : call.reads) tensors.push_back(step.slots[one.slot]);
      InFlight on_the_way = messages_across_stages(ranks_).begin_send(
          str("{} of micro-batch {}", parts_.cut.functions[call.function].name, call.micro_batch), tensors, call.peer,
          static_cast<int>(call.message));
      step.sends.emplace(call.message, Step::Send{std::move(tensors), std::move(on_the_way)});
      break;
    }
    case StageCall::Kind::kSent: {
      const auto send = step.sends.find(call.message);
      step.wait_for(send->second.on_the_way);
      step.sends.erase(send);
      break;
    }
    case StageCall::Kind::kReceive: {
      Step::Receive& receive = step.receives.at(c);
      step.wait_for(receive.on_the_way);
      for (size_t i = 0; i < call.writes.size(); ++i) put(call.writes[i], receive.tensors[i]);
      step.receives.erase(c);
      break;
    }
  }
  for (const SlotValue& one : call.writes) step.bytes += step.slots[one.slot].nbytes();
  step.most_bytes = std::max(step.most_bytes, step.bytes);
  for (const uint32_t slot : call.frees) {
    step.bytes -= step.slots[slot].nbytes();
    step.slots[slot].reset();
  }
}

at::Tensor StageRun::returned(uint32_t result) const { return step_->results.at({result, 0}); }

std::vector<at::Tensor> StageRun::end() {
  go_on(UINT32_MAX);
  most_bytes_ = step_->most_bytes;
  if (keeps_slots_) {
    most_bytes_ = 0;
    for (const at::Tensor& slot : slots_) most_bytes_ += slot.defined() ? slot.nbytes() : 0;
  }
  graphs_launched_ = step_->graphs_launched;
  waited_seconds_ = step_->waited_seconds;
  run_seconds_ = step_->run_seconds;
  if (step_->draws) write_generator(draws(), step_->draws->second);
  std::vector<at::Tensor> results = shared_results();
  step_.reset();
  return results;
}

// Receives the messages that other ranks have already sent, because later messages have the same numbers.
void StageRun::abandon() {
  if (step_ == nullptr) return;
  for (size_t c = step_->next; c < calls().size(); ++c) {
    const StageCall& call = calls()[c];
    if (call.kind != StageCall::Kind::kReceive || parts_.cut.functions[call.function].reads > step_->reads) continue;
    begin_receive(c);
    step_->wait_for(step_->receives.at(c).on_the_way);
  }
  for (auto& [message, send] : step_->sends) step_->wait_for(send.on_the_way);
  step_.reset();
}

// All ranks get the results that only some stages return from the first of those stages.
std::vector<at::Tensor> StageRun::shared_results() {
  std::vector<at::Tensor> results;
  for (uint32_t r = 0; r < parts_.cut.returns.size(); ++r) {
    TensorType type = parts_.cut.returns[r];
    type.shape.insert(type.shape.begin(), parts_.program.micro_batches);
    at::Tensor all = empty_value(type);
    for (int64_t m = 0; m < parts_.program.micro_batches; ++m)
      if (const auto own = step_->results.find({r, m}); own != step_->results.end()) all[m].copy_(own->second);
    std::set<int64_t> on;  // ranks along pp
    for (const StageProgram::Function& function : parts_.program.functions) {
      const auto f = static_cast<size_t>(&function - parts_.program.functions.data());
      if (std::ranges::find(parts_.cut.functions[f].returns, r) != parts_.cut.functions[f].returns.end())
        on.insert(function.rank);
    }
    if (std::ssize(on) < ranks_.count) across_stages(ranks_).broadcast(all, *on.begin());
    results.push_back(std::move(all));
  }
  return results;
}

ProgramTimeline StageRun::predict(const KnownTarget& known) const {
  std::vector<double> seconds;
  for (const auto& program : programs_) {  // a rank knows the functions of its stage
    const double own = program == nullptr ? 0 : stepc::predict(program->schedule(), known).seconds;
    seconds.push_back(static_cast<double>(ranks_.all->largest(static_cast<int64_t>(own * 1e9))) * 1e-9);
  }
  return simulate(parts_.program, seconds, [&](const StageCall& send) {
    const Rates& rates = known.target.rates;
    return rates.link_latency_seconds + static_cast<double>(sent_bytes(parts_, send)) / rates.link_bytes_per_second;
  });
}

uint64_t StageRun::planned_bytes() const {
  return keeps_slots_ ? slot_bytes(parts_, ranks_.own) : between_bytes(parts_, ranks_.own);
}

uint64_t StageRun::step_bytes() const {
  uint64_t bytes = 0;
  for (const auto& program : programs_)
    if (program != nullptr) bytes = std::max(bytes, program->schedule().peak_bytes());
  return bytes + planned_bytes();
}

}  // namespace stepc
