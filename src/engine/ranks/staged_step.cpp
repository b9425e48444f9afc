#include "engine/ranks/staged_step.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/Functions.h>

#include "aten/memory_regions.h"
#include "base/check.h"
#include "ir/alignment.h"
#include "runtime/kernel_sources.h"

namespace stepc {

namespace {

constexpr auto kDoublesApart = static_cast<int64_t>(kAlignment / sizeof(double));  // of one number from the next

// A tensor of one element as a host number.
Arg number_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (at::isFloatingType(tensor.scalar_type())) return tensor.item<double>();
  return tensor.item<int64_t>();
}

}  // namespace

StagedStep::StagedStep(VirtualPlan captured, StageSteps& stages, int64_t micro_batches, KernelSources& kernels,
                       CompileOptions& options, const Verify& verify, ShardedState& state)
    : stages_(stages), state_(state) {
  cut_ = cut_in_time(captured, micro_batches, kernels, options);
  trace_ = std::move(captured.trace);
  if (!trace_.device.empty()) device_ = c10::Device(trace_.device);
  find_numbers();
  place_ = at::zeros({}, at::TensorOptions(device_).dtype(at::kLong));
  options.moving_tensors = cut_.batch + cut_.before.size();
  runs_ = stages_.runs_of(cut_, options);
  for (const Graph& graph : cut_.before) {
    CompileOptions own = options;
    own.budget = {};
    own.function = &graph;
    before_.push_back(std::make_unique<RankProgram>(kernels, own, verify, stages_.ranks().stage, state_));
  }
}

// Finds the numbers as a Schedule lists them (schedule/graph_leaving.cpp), in the whole step's Trace.
void StagedStep::find_numbers() {
  const auto count = static_cast<int64_t>(cut_.numbers.size());
  numbers_here_ = at::zeros({count, kDoublesApart}, at::kDouble);
  numbers_there_ = device_.is_cpu() ? numbers_here_ : numbers_here_.to(device_);
  for (int64_t n = 0; n < count; ++n) numbers_.push_back(numbers_there_[n][0]);
  const auto place_of = [&](const std::string& key) {
    return static_cast<size_t>(std::ranges::find(cut_.numbers, key) - cut_.numbers.begin());
  };
  for (const HostEvent& event : trace_.events)
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
      if (std::ranges::find(event.own_calls, CallId(c)) != event.own_calls.end()) continue;
      const std::vector<Arg>& args = trace_.calls[c].args;
      for (size_t a = 0; a < args.size(); ++a) {
        HostNumber number;
        const auto add = [&](const std::string& key) {
          const size_t place = place_of(key);
          if (place < cut_.numbers.size()) number.places.push_back(place);
          return place < cut_.numbers.size();
        };
        if (!add(host_number_key(event, CallId(c), a)))
          for (size_t k = 0; add(host_number_key(event, CallId(c), a, k));) ++k;
        if (const auto* integer = std::get_if<int64_t>(&args[a])) number.integer = *integer;
        if (!number.places.empty() || number.integer) host_numbers_[{CallId(c), a}] = std::move(number);
      }
    }
}

void StagedStep::set_number(size_t place, double number) {
  numbers_here_.mutable_data_ptr<double>()[static_cast<int64_t>(place) * kDoublesApart] = number;
  have_numbers_changed_ = true;
}

// One copy for all of them.
void StagedStep::upload_numbers() {
  if (std::exchange(have_numbers_changed_, false) && !device_.is_cpu())
    numbers_there_.copy_(numbers_here_, /*non_blocking=*/true);  // not page-locked: has been read when this returns
}

void StagedStep::supply(CallId call, size_t arg, const c10::IValue& number) {
  const auto found = host_numbers_.find({call, arg});
  if (found == host_numbers_.end()) return;  // the event's own call
  const HostNumber& into = found->second;
  if (into.places.empty()) {
    is_unfit_ |= !number.isInt() || number.toInt() != *into.integer;
  } else if (number.isList()) {
    const c10::List<c10::IValue> list = number.toList();
    is_unfit_ |= list.size() != into.places.size();
    for (size_t k = 0; k < list.size() && k < into.places.size(); ++k)
      set_number(into.places[k], list.get(k).toScalar().toDouble());
  } else {
    set_number(into.places[0], number.isTensor() ? number.toTensor().item<double>() : number.toScalar().toDouble());
  }
}

std::map<size_t, std::optional<PartOf>> StagedStep::batch_parts() const {
  std::map<size_t, std::optional<PartOf>> parts;
  for (size_t t = 0; t < cut_.batch; ++t) parts[t] = std::nullopt;
  for (const auto& [tensor, rows] : cut_.rows)
    if (!rows.part.sharding.is_whole()) parts[tensor] = rows.part;
  for (const BatchCut::Round& round : cut_.rounds)
    for (const Graph* graph : {&round.micro_batch, &round.update})
      for (const GraphInput& input : graph->inputs)
        if (input.kind == InputKind::kBatch && input.part) parts[std::stoul(input.key)] = input.part;
  return parts;
}

// The rows of a micro-batch. `batch`: this rank's part of the tensors that have rows.
std::vector<at::Tensor> StagedStep::rows_of(const std::vector<at::Tensor>& batch, int64_t micro_batch) const {
  std::vector<at::Tensor> rows = batch;
  for (const auto& [tensor, split] : cut_.rows) {
    const auto dim = static_cast<int64_t>(split.dim);
    const int64_t count = batch[tensor].size(dim) / cut_.micro_batches;
    rows[tensor] = batch[tensor].narrow(dim, micro_batch * count, count);
  }
  return rows;
}

StepResult StagedStep::begin(const std::vector<at::Tensor>& given, const Probes& probes) {
  ++steps_;
  before_run_ = read_generator(generator());
  upload_numbers();
  clear_held();
  const std::vector<at::Tensor> batch = batch_of(given);
  std::vector<at::Tensor> of_update = batch;
  of_update.insert(of_update.end(), numbers_.begin(), numbers_.end());
  const auto from_one_seed = [&](const StageRun& run) {
    if (run.cut().draws) write_generator(generator(), *before_run_);
  };
  const auto for_update = [&](int64_t) { return of_update; };
  for (size_t round = 0; round < cut_.rounds.size(); ++round) {
    StageRun& micro_batches = *runs_.micro_batches[round];
    from_one_seed(micro_batches);
    const std::vector<at::Tensor> returned = micro_batches.run([&](int64_t m) { return with_place(batch, m); }, probes);
    for (size_t r = 0; r < returned.size(); ++r) of_update.push_back(at_its_place(round, r, returned[r]));
    stages_.sum_shared(cut_.rounds[round].sums, runs_.sums);
    StageRun& update = *runs_.updates[round];
    from_one_seed(update);
    if (&update != &last_update()) update.run(for_update, probes);
  }
  reads_ = 0;
  if (probes.on_update) probes.on_update(last_update());
  last_update().begin([of_update](int64_t) { return of_update; }, probes);
  return came_to();
}

// Sets the sums to zero. Tensors that updates leave for later parts get memory with the first step.
void StagedStep::clear_held() {
  std::vector<std::string> keys;
  for (const BatchCut::Round& round : cut_.rounds) {
    keys.insert(keys.end(), round.sums.begin(), round.sums.end());
    for (const GraphInput& input : round.update.inputs)
      if (!is_begun_ && input.kind == InputKind::kGradient) keys.push_back(input.key);
  }
  for (const std::string& key : keys)
    if (state_.has(Owner::kGradient, key)) state_.fill(Owner::kGradient, key, 0);
  is_begun_ = true;
}

void StagedStep::run_passes(const std::vector<at::Tensor>& given, const StageRun::Probes& probes) {
  upload_numbers();
  const std::vector<at::Tensor> batch = batch_of(given);
  runs_.micro_batches[0]->run([&](int64_t m) { return with_place(batch, m); }, probes);
}

// Where the device's graphs find it in every step.
at::Tensor StagedStep::at_its_place(size_t round, size_t result, const at::Tensor& now) {
  if (device_.is_cpu()) return now;
  at::Tensor& place = of_all_there_[{round, result}];
  if (!place.defined()) place = at::empty_like(now);
  return place.copy_(now, /*non_blocking=*/true);
}

// The tensors of that micro-batch, until those of another one are asked for.
std::vector<at::Tensor> StagedStep::with_place(const std::vector<at::Tensor>& batch, int64_t micro_batch) const {
  std::vector<at::Tensor> tensors = rows_of(batch, micro_batch);
  tensors.insert(tensors.end(), numbers_.begin(), numbers_.end());
  tensors.push_back(place_.fill_(micro_batch));
  return tensors;
}

// This rank's batch, followed by the sums that micro-batches need before they begin.
std::vector<at::Tensor> StagedStep::batch_of(const std::vector<at::Tensor>& given) {
  std::vector<at::Tensor> batch = given;
  batch.resize(cut_.batch);
  for (at::Tensor& one : batch)
    if (one.defined()) one = one.to(device_);
  for (const auto& [tensor, rows] : cut_.rows)
    if (!rows.part.sharding.is_whole() && batch[tensor].sizes() == c10::IntArrayRef(rows.part.shape))
      batch[tensor] = part_of(batch[tensor], rows.part.sharding, state_.mesh(), state_.ranks().rank());
  graphs_before_ = 0;
  for (const auto& before : before_) {
    at::Tensor sum;
    for (int64_t m = 0; m < cut_.micro_batches; ++m) {
      std::vector<at::Tensor> tensors = with_place(batch, m);
      // All sums follow the batch; those that are not computed yet are empty.
      tensors.insert(tensors.begin() + static_cast<ptrdiff_t>(batch.size()),
                     before_.size() - (batch.size() - cut_.batch), at::Tensor());
      const StepResult result = before->step(tensors, nullptr, nullptr, {.step = steps_});
      graphs_before_ += result.memory.device_graphs;
      const at::Tensor& one = result.outputs.at(0);
      sum = m == 0 ? one : at::add(sum, one);
    }
    batch.push_back(sum);
  }
  return batch;
}

StepResult StagedStep::go_on() {
  ++reads_;
  return came_to();
}

void StagedStep::abandon() {
  last_update().abandon();
  if (before_run_) write_generator(generator(), *before_run_);
  before_run_.reset();
}

StepResult StagedStep::came_to() {
  upload_numbers();
  last_update().go_on(reads_);
  StepResult result;
  if (reads_ < cut_.reads.size()) {
    result.paused = true;
    result.event = cut_.reads[reads_].event;
    result.given = {last_update().returned(cut_.reads[reads_].result)};
    return result;
  }
  const std::vector<at::Tensor> made = last_update().end();
  before_run_.reset();
  for (const BatchCut::Result& one : cut_.results) {
    at::Tensor tensor = one.place < 0 ? at::Tensor() : made.at(static_cast<size_t>(one.place))[0];
    if (one.is_number) {
      result.numbers.push_back(number_of(tensor));
      continue;
    }
    const ValueId returned = trace_.outputs.at(result.outputs.size());
    if (tensor.defined()) tensor = tensor.to(device_of(trace_, trace_.values[returned.index()].storage));
    result.outputs.push_back(std::move(tensor));
  }
  for (const RankProgram* program : programs()) {
    const MemoryCounts& memory = program->measured();
    result.memory.served += memory.served;
    result.memory.unplanned += memory.unplanned;
    result.memory.arena_peak_bytes = std::max(result.memory.arena_peak_bytes, memory.arena_peak_bytes);
    result.memory.unplanned_bytes = std::max(result.memory.unplanned_bytes, memory.unplanned_bytes);
  }
  result.memory.kept_bytes = measured_between();
  result.memory.device_graphs = graphs_launched();
  return result;
}

std::vector<const RankProgram*> StagedStep::programs() const {
  std::vector<const RankProgram*> all;
  const auto add = [&](const std::vector<std::unique_ptr<RankProgram>>& programs) {
    for (const auto& program : programs)
      if (program != nullptr) all.push_back(program.get());
  };
  add(before_);
  for (const auto* runs : {&runs_.micro_batches, &runs_.updates})
    for (const auto& run : *runs) add(run->programs());
  return all;
}

RankProgram::Verified StagedStep::verified() const {
  RankProgram::Verified all;
  for (const RankProgram* program : programs()) {
    const RankProgram::Verified& one = program->verified();
    all.count += one.count;
    all.seconds += one.seconds;
    if (!one.with.empty()) all.with = one.with;
    if (!one.warning.empty()) all.warning = one.warning;
  }
  return all;
}

std::vector<std::pair<InputKind, std::string>> StagedStep::program_inputs() const {
  std::set<std::pair<InputKind, std::string>> all;
  const auto add = [&](const Graph& graph) {
    for (const GraphInput& input : graph.inputs) {
      const bool is_own = input.kind == InputKind::kBatch || input.kind == InputKind::kGradient;  // held sums
      if (is_of_program(input.kind) && !is_own) all.emplace(input.kind, input.key);
    }
  };
  for (const Graph& graph : cut_.before) add(graph);
  for (const auto* runs : {&runs_.micro_batches, &runs_.updates})
    for (const auto& run : *runs)
      for (const StageFunction& function : run->cut().functions) add(function.graph);
  return {all.begin(), all.end()};
}

bool StagedStep::draws() const {
  const auto draws = [](const auto& run) { return run->cut().draws; };
  return std::ranges::any_of(runs_.micro_batches, draws) || std::ranges::any_of(runs_.updates, draws);
}

double StagedStep::planning_seconds() const {
  double seconds = 0;
  for (const RankProgram* program : programs()) seconds += program->planning_seconds();
  return seconds;
}

uint64_t StagedStep::planned_bytes() const {
  uint64_t bytes = 0;
  for (const RankProgram* program : programs()) bytes = std::max(bytes, program->schedule().peak_bytes());
  return bytes + planned_between();
}

uint64_t StagedStep::planned_between() const {
  uint64_t bytes = 0;
  for (const auto* runs : {&runs_.micro_batches, &runs_.updates})
    for (const auto& run : *runs) bytes = std::max(bytes, run->planned_bytes());
  return bytes;
}

uint64_t StagedStep::measured_between() const {
  uint64_t bytes = 0;
  for (const auto* runs : {&runs_.micro_batches, &runs_.updates})
    for (const auto& run : *runs) bytes = std::max(bytes, run->measured_bytes());
  return bytes;
}

uint64_t StagedStep::graphs_launched() const {
  uint64_t count = graphs_before_;
  for (const auto* runs : {&runs_.micro_batches, &runs_.updates})
    for (const auto& run : *runs) count += run->graphs_launched();
  return count;
}

std::string StagedStep::predicted_wait(int64_t rank) const {
  return timeline_.seconds > 0 ? str(", predicted {:.0f} %", 100 * timeline_.idle_share(rank)) : std::string();
}

void StagedStep::predict(const KnownTarget& known) {
  if (!trace_.device.empty() && !known.target.gpu) return;  // the rates are a CPU's
  timeline_ = runs_.micro_batches[0]->predict(known);
  predicted_seconds_ = timeline_.seconds;
  for (size_t round = 1; round < runs_.micro_batches.size(); ++round)
    predicted_seconds_ += runs_.micro_batches[round]->predict(known).seconds;
  for (const auto& update : runs_.updates) predicted_seconds_ += update->predict(known).seconds;
  for (const auto& before : before_)
    predicted_seconds_ += static_cast<double>(cut_.micro_batches) * stepc::predict(before->schedule(), known).seconds;
}

}  // namespace stepc
