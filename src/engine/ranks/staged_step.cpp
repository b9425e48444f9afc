#include "engine/ranks/staged_step.h"

#include <algorithm>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include "base/check.h"
#include "runtime/kernel_sources.h"

namespace stepc {

namespace {

// A result of one element as the host number that it is.
Arg number_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (at::isFloatingType(tensor.scalar_type())) return tensor.item<double>();
  return tensor.item<int64_t>();
}

}  // namespace

StagedStep::StagedStep(VirtualPlan captured, StageSteps& stages, int64_t micro_batches, KernelSources& kernels,
                       CompileOptions& options, const Verify& verify, ShardedState& state)
    : stages_(stages), state_(state) {
  const Mesh mesh = options.strategy.mesh;
  options.strategy.mesh.axes.push_back({std::string(kMicroBatchAxis), micro_batches});
  cut_ = cut_batch(rank_graph_of(captured, kernels, options));
  options.strategy.mesh = mesh;
  trace_ = std::move(captured.trace);
  find_numbers();
  const auto updates_of = [&](const StageParts& parts) {
    sums_ = holders_of_sums(parts, cut_.update, stages_.cuts().holders());
    return std::vector<StageParts>{stages_.cuts().update(cut_.update, sums_, cut_.reads)};
  };
  CompileOptions without_budget = options;
  without_budget.budget = {};
  if (is_training(cut_.micro_batch)) {
    StageSteps::Runs runs = stages_.runs_within(cut_.micro_batch, updates_of, options);
    micro_batch_ = std::move(runs.micro_batch);
    weighed_ = runs.weighed;
    update_ = std::move(runs.updates[0]);
  } else {
    StageParts parts = stages_.cuts().forward(cut_.micro_batch, micro_batches);
    StageParts update = std::move(updates_of(parts)[0]);
    micro_batch_ = stages_.run_of(std::move(parts), without_budget);
    update_ = stages_.run_of(std::move(update), without_budget);
  }
  for (const Graph& graph : cut_.before) {
    CompileOptions own = without_budget;
    own.function = &graph;
    before_.push_back(std::make_unique<RankProgram>(kernels, own, verify, stages_.ranks().stage, state_));
  }
}

// As a Schedule lists them (schedule/graph_leaving.cpp), of the whole step's Trace.
void StagedStep::find_numbers() {
  for (size_t n = 0; n < cut_.numbers.size(); ++n) numbers_.push_back(at::zeros({}, at::kDouble));
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
      numbers_[into.places[k]].fill_(list.get(k).toScalar().toDouble());
  } else {
    numbers_[into.places[0]].fill_(number.isTensor() ? number.toTensor().item<double>() : number.toScalar().toDouble());
  }
}

std::map<size_t, std::optional<PartOf>> StagedStep::batch_parts() const {
  std::map<size_t, std::optional<PartOf>> parts;
  for (size_t t = 0; t < cut_.batch; ++t) parts[t] = std::nullopt;
  for (const auto& [tensor, rows] : cut_.rows)
    if (!rows.part.sharding.is_whole()) parts[tensor] = rows.part;
  for (const Graph* graph : {&cut_.micro_batch, &cut_.update})
    for (const GraphInput& input : graph->inputs)
      if (input.kind == InputKind::kBatch && input.part) parts[std::stoul(input.key)] = input.part;
  return parts;
}

// `batch`: this rank's part of what has rows.
std::vector<at::Tensor> StagedStep::rows_of(const std::vector<at::Tensor>& batch, int64_t micro_batch) const {
  std::vector<at::Tensor> rows = batch;
  for (const auto& [tensor, split] : cut_.rows) {
    const auto dim = static_cast<int64_t>(split.dim);
    const int64_t count = batch[tensor].size(dim) / cut_.micro_batches;
    rows[tensor] = batch[tensor].narrow(dim, micro_batch * count, count);
  }
  return rows;
}

StepResult StagedStep::begin(const std::vector<at::Tensor>& given, Times* times) {
  before_run_ = read_generator(at::detail::getDefaultCPUGenerator());
  for (const std::string& sum : cut_.sums)
    if (state_.has(Owner::kGradient, sum)) state_.fill(Owner::kGradient, sum, 0);
  std::vector<at::Tensor> batch = given;
  batch.resize(cut_.batch);
  const std::vector<at::Tensor> returned = run_micro_batches(batch, times);
  stages_.sum_shared_gradients(sums_);
  batch.insert(batch.end(), numbers_.begin(), numbers_.end());
  batch.insert(batch.end(), returned.begin(), returned.end());
  reads_ = 0;
  if (update_->cut().draws) write_generator(at::detail::getDefaultCPUGenerator(), *before_run_);  // one seed for both
  update_->begin([batch](int64_t) { return batch; }, {times, {}});
  return came_to();
}

// `batch`: behind it the sums that micro-batches need before they begin.
std::vector<at::Tensor> StagedStep::run_micro_batches(std::vector<at::Tensor>& batch, Times* times) {
  for (const auto& [tensor, rows] : cut_.rows)
    if (!rows.part.sharding.is_whole() && batch[tensor].sizes() == c10::IntArrayRef(rows.part.shape))
      batch[tensor] = part_of(batch[tensor], rows.part.sharding, state_.mesh(), state_.ranks().rank());
  const auto with_place = [&](int64_t micro_batch) {
    std::vector<at::Tensor> tensors = rows_of(batch, micro_batch);
    tensors.insert(tensors.end(), numbers_.begin(), numbers_.end());
    tensors.push_back(at::scalar_tensor(micro_batch, at::kLong));
    return tensors;
  };
  for (const auto& before : before_) {
    at::Tensor sum;
    for (int64_t m = 0; m < cut_.micro_batches; ++m) {
      std::vector<at::Tensor> tensors = with_place(m);
      // Behind the batch stand all of these, those that are not there yet empty.
      tensors.insert(tensors.begin() + static_cast<ptrdiff_t>(batch.size()),
                     before_.size() - (batch.size() - cut_.batch), at::Tensor());
      const at::Tensor one = before->step(tensors).outputs.at(0);
      sum = m == 0 ? one : at::add(sum, one);
    }
    batch.push_back(sum);
  }
  return micro_batch_->run(with_place, {times, {}});
}

StepResult StagedStep::go_on() {
  ++reads_;
  return came_to();
}

void StagedStep::abandon() {
  update_->abandon();
  if (before_run_) write_generator(at::detail::getDefaultCPUGenerator(), *before_run_);
  before_run_.reset();
}

StepResult StagedStep::came_to() {
  update_->go_on(reads_);
  StepResult result;
  if (reads_ < cut_.reads.size()) {
    result.paused = true;
    result.event = cut_.reads[reads_].event;
    result.given = {update_->returned(cut_.reads[reads_].result)};
    return result;
  }
  const std::vector<at::Tensor> made = update_->end();
  before_run_.reset();
  for (const BatchCut::Result& one : cut_.results) {
    const at::Tensor tensor = one.place < 0 ? at::Tensor() : made.at(static_cast<size_t>(one.place))[0];
    if (one.is_number)
      result.numbers.push_back(number_of(tensor));
    else
      result.outputs.push_back(tensor);
  }
  for (const RankProgram* program : programs()) {
    const MemoryCounts& memory = program->measured();
    result.memory.served += memory.served;
    result.memory.unplanned += memory.unplanned;
    result.memory.arena_peak_bytes = std::max(result.memory.arena_peak_bytes, memory.arena_peak_bytes);
    result.memory.unplanned_bytes = std::max(result.memory.unplanned_bytes, memory.unplanned_bytes);
  }
  result.memory.kept_bytes = micro_batch_->measured_bytes();
  return result;
}

std::vector<const RankProgram*> StagedStep::programs() const {
  std::vector<const RankProgram*> all;
  const auto add = [&](const std::vector<std::unique_ptr<RankProgram>>& programs) {
    for (const auto& program : programs)
      if (program != nullptr) all.push_back(program.get());
  };
  add(before_);
  add(micro_batch_->programs());
  add(update_->programs());
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
      const bool is_sum = input.kind == InputKind::kGradient && sums_.contains(input.key);
      if (is_of_program(input.kind) && input.kind != InputKind::kBatch && !is_sum) all.emplace(input.kind, input.key);
    }
  };
  for (const Graph& graph : cut_.before) add(graph);
  for (const StageRun* run : {micro_batch_.get(), update_.get()})
    for (const StageFunction& function : run->cut().functions) add(function.graph);
  return {all.begin(), all.end()};
}

bool StagedStep::draws() const { return micro_batch_->cut().draws || update_->cut().draws; }

double StagedStep::planning_seconds() const {
  double seconds = 0;
  for (const RankProgram* program : programs()) seconds += program->planning_seconds();
  return seconds;
}

uint64_t StagedStep::planned_bytes() const {
  uint64_t bytes = 0;
  for (const RankProgram* program : programs()) bytes = std::max(bytes, program->schedule().peak_bytes());
  return bytes + std::max(micro_batch_->planned_bytes(), update_->planned_bytes());
}

void StagedStep::predict(const KnownTarget& known) {
  timeline_ = micro_batch_->predict(known);
  update_timeline_ = update_->predict(known);
}

}  // namespace stepc
