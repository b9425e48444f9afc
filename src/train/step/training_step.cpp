#include "train/step/training_step.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>

#include "base/text.h"
#include "train/machine/kernel_directory.h"

namespace stepc::train {
namespace {

uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

Config beside(Config config, uint64_t others) {
  config.memory_budget = stepc::beside(config.memory_budget, others);
  return config;
}

// Whether a call between the two was replayed, or ran as it is because no plan came of it.
bool is_settled(const Stats& before, const Stats& after) {
  return after.replays > before.replays ||
         after.eager_calls + before.verifications > before.eager_calls + after.verifications;
}

Stats sum_of(const Stats& larger, const Stats& other) {
  Stats sum = larger;
  sum.measured_peak_bytes = std::max(sum.measured_peak_bytes, other.measured_peak_bytes);
  sum.verification_bytes = std::max(sum.verification_bytes, other.verification_bytes);
  for (const auto count :
       {&Stats::unplanned_allocations, &Stats::recordings, &Stats::replays, &Stats::recorded_replays,
        &Stats::eager_calls, &Stats::verifications, &Stats::plain_verifications, &Stats::eager_verifications,
        &Stats::float64_verifications, &Stats::guard_misses, &Stats::checks, &Stats::failed_checks, &Stats::departures,
        &Stats::plans, &Stats::late_plans})
    sum.*count += other.*count;
  for (const auto seconds : {&Stats::capture_seconds, &Stats::settle_seconds, &Stats::planning_seconds,
                             &Stats::verify_seconds, &Stats::shadow_seconds, &Stats::execute_seconds})
    sum.*seconds += other.*seconds;
  sum.warnings.insert(sum.warnings.end(), other.warnings.begin(), other.warnings.end());
  return sum;
}

}  // namespace

Config engine_config(const RunConfig& config, Mode mode, Capture capture) {
  Config engine;
  engine.mode = mode;
  engine.capture = capture;
  engine.verify = parse_verify(config.train.verify);
  engine.memory_budget = parse_memory_budget(config.memory.budget);
  engine.kernel_directory = kernel_directory();
  engine.max_plans = std::max(engine.max_plans, static_cast<int>(config.data.buckets.size()));
  return engine;
}

TrainingStep::TrainingStep(models::Decoder model, ChosenOptimizer optimizer, double clip, int64_t micro_batches,
                           Config config)
    : optimizer_(std::move(optimizer)), micro_batches_(micro_batches) {
  const std::vector<ModuleRef> modules = {model};
  const std::vector<OptimizerRef> optimizers = {optimizer_.optimizer};
  if (!is_in_parts(optimizer_, micro_batches)) {
    whole_.emplace(accelerate(make_train_step(model, optimizer_, clip), modules, optimizers, std::move(config)));
    return;
  }
  hold_gradients(optimizer_);
  uint64_t state = 0, untrained = bytes_of(model->parameters()) + bytes_of(model->buffers());
  for (const auto& [name, tensor] : optimizer_.optimizer->named_state()) state += tensor.nbytes();
  for (const auto& [name, parameter] : optimizer_.optimizer->parameters()) untrained -= parameter.nbytes();
  micro_.emplace(accelerate(make_micro_step(model, optimizer_), modules, optimizers, beside(config, state)));
  update_.emplace(accelerate(make_update_step(optimizer_, clip), modules, optimizers, beside(config, untrained)));
}

std::vector<at::Tensor> TrainingStep::inputs(const Batch& batch) const {
  return micro_tensors(batch.micro_batch(0), models::count_tokens(batch.labels));
}

bool TrainingStep::capture(const Batch& batch) {
  if (whole_) return whole_->capture(batch.tensors());
  return micro_->capture(inputs(batch)) && update_->capture(std::vector<at::Tensor>());
}

void TrainingStep::load() {
  if (whole_) return;
  for (const at::Tensor& gradient : held_gradients(optimizer_))
    if (is_virtual(gradient)) materialise(gradient);
  clear_gradients();
}

bool TrainingStep::prepare(const Batch& batch) {
  if (whole_) return whole_->prepare(batch.tensors());
  if (!micro_->prepare(inputs(batch))) return false;
  // The update is compared with gradients such as it will meet.
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor draws = generator.get_state();
  (*micro_)(inputs(batch));
  const bool is_planned = update_->prepare(std::vector<at::Tensor>());
  clear_gradients();
  generator.set_state(draws);
  return is_planned;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> TrainingStep::operator()(const Batch& batch) {
  const Stats whole = whole_ ? whole_->stats() : micro_->stats();
  const Stats update = whole_ ? Stats() : update_->stats();
  auto result = run(batch);
  is_settled_ = whole_ ? train::is_settled(whole, whole_->stats())
                       : train::is_settled(whole, micro_->stats()) && train::is_settled(update, update_->stats());
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> TrainingStep::run(const Batch& batch) {
  if (whole_) return (*whole_)(batch.tensors());
  const at::Tensor token_count = models::count_tokens(batch.labels);
  at::Tensor sum;
  for (int64_t i = 0; i < batch.tokens.size(0); ++i) {
    const at::Tensor loss = (*micro_)(micro_tensors(batch.micro_batch(i), token_count));
    sum = sum.defined() ? sum + loss : loss;
  }
  const auto [norm, skipped] = (*update_)(std::vector<at::Tensor>());
  return {sum, norm, skipped};
}

void TrainingStep::end_warm_up() {
  if (whole_) return whole_->end_warm_up();
  micro_->end_warm_up();
  update_->end_warm_up();
}

void TrainingStep::clear_gradients() {
  if (whole_) return optimizer_.optimizer->zero_grad();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : held_gradients(optimizer_)) gradient.zero_();
}

bool TrainingStep::update_is_larger() const {
  return update_ && update_->stats().planned_peak_bytes > micro_->stats().planned_peak_bytes;
}

Stats TrainingStep::stats() const {
  if (whole_) return whole_->stats();
  Stats sum =
      update_is_larger() ? sum_of(update_->stats(), micro_->stats()) : sum_of(micro_->stats(), update_->stats());
  sum.state_bytes += bytes_of(held_gradients(optimizer_));
  return sum;
}

std::string TrainingStep::report() const {
  if (whole_) return whole_->report();
  return str("a micro-batch, {} a step, which add their gradients to {} held beside the plans:\n{}the update:\n{}",
             micro_batches_, human_bytes(bytes_of(held_gradients(optimizer_))), micro_->report(), update_->report());
}

std::optional<Prediction> TrainingStep::prediction() const {
  if (whole_) return whole_->prediction();
  std::optional<Prediction> sum = micro_->prediction();
  const std::optional<Prediction> update = update_->prediction();
  if (!sum || !update) return std::nullopt;
  sum->seconds = sum->seconds * static_cast<double>(micro_batches_) + update->seconds;
  return sum;
}

std::optional<Target> TrainingStep::weighed_with() const {
  return whole_ ? whole_->weighed_with() : micro_->weighed_with();
}

std::string TrainingStep::memory_text() const {
  if (whole_) return whole_->memory_text();
  return update_is_larger() ? update_->memory_text() : micro_->memory_text();
}

std::string TrainingStep::memory_svg() const {
  if (whole_) return whole_->memory_svg();
  return update_is_larger() ? update_->memory_svg() : micro_->memory_svg();
}

void TrainingStep::start_profile() {
  if (whole_) return whole_->start_profile();
  micro_->start_profile();
  update_->start_profile();
}

std::optional<Profile> TrainingStep::finish_profile() {
  if (whole_) return whole_->finish_profile();
  std::optional<Profile> profile = micro_->finish_profile();
  const std::optional<Profile> update = update_->finish_profile();
  if (!profile || !update) return std::nullopt;
  profile->append(*update);
  return profile;
}

}  // namespace stepc::train
