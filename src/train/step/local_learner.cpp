#include "train/step/local_learner.h"

#include <map>
#include <utility>
#include <vector>

#include "aten/generator_snapshot.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "capture/virtual/virtual_region.h"
#include "train/machine/device.h"
#include "train/model/adapter_choice.h"
#include "train/step/evaluate.h"
#include "train/step/find_nonfinite.h"
#include "train/step/staged_checkpoint.h"

namespace stepc::train {

std::map<std::string, at::Tensor> master_weights(const optim::Optimizer& optimizer) {
  std::map<std::string, at::Tensor> masters;
  for (const auto& [name, tensor] : optimizer.named_state()) {
    if (name.ends_with(kMasterSuffix)) masters[name.substr(0, name.size() - kMasterSuffix.size())] = tensor;
  }
  return masters;
}

std::string saved_dtype(const std::string& from, const std::string& compute) {
  if (compute == "float64") return compute;
  return from == "bfloat16" && compute == "bfloat16" ? "bfloat16" : "float32";
}

namespace {
// Whether a call between the two statistics was replayed, or is eager for good: one eager step shows this.
bool is_settled(const Stats& before, const Stats& after) {
  return after.replays > before.replays ||
         after.eager_calls + before.verifications > before.eager_calls + after.verifications;
}
}  // namespace

LocalLearner::LocalLearner(ModelDirectory directory, const RunConfig& config, std::optional<Target> target)
    : device_(use_device("train.device", config.train.device)),
      to_device_(device_),
      max_shard_bytes_(static_cast<uint64_t>(config.output.max_shard_gb * kBytesPerGb)),
      directory_(std::move(directory)) {
  std::optional<VirtualRegion> shapes_alone;
  const bool is_virtual = device_.is_cpu() && config.train.mode == name_of(Mode::kFast) &&
                          config.train.capture == name_of(Capture::kVirtual);
  is_loaded_ = !is_virtual || directory_.adapter;  // adapters are made as they are loaded
  if (!is_loaded_) shapes_alone.emplace();
  model_ =
      models::Decoder(directory_.config, at::TensorOptions(device_).dtype(models::scalar_type(config.model.compute)));
  if (is_loaded_) load_weights(directory_, model_);
  optimizer_ = choose_optimizer(config, models::trainable_parameters(model_));
  if (is_loaded_) finish_loading(config);

  Config engine = engine_config(config, parse_mode(config.train.mode), is_virtual ? Capture::kVirtual : Capture::kRun);
  engine.target = std::move(target);
  step_.emplace(accelerated_step(model_, optimizer_, config, std::move(engine)));
}

bool LocalLearner::plan(const Batch& batch) { return step_->capture(batch.all_rows()); }

void LocalLearner::load(const RunConfig& config) {
  if (std::exchange(is_loaded_, true)) return;
  for (const at::Tensor& parameter : model_->parameters()) materialise(parameter);
  for (const at::Tensor& buffer : model_->buffers())
    INTERNAL_CHECK(!is_virtual(buffer), "a buffer of the model has no values");
  load_weights(directory_, model_);
  // The state that the optimizer makes for these weights, in the tensors that the planned step knows.
  const NamedTensors made = choose_optimizer(config, models::trainable_parameters(model_)).optimizer->named_state();
  const NamedTensors planned = optimizer_.optimizer->named_state();
  for (size_t i = 0; i < made.size(); ++i) at::Tensor(planned[i].second).set_data(made[i].second);
  finish_loading(config);
}

void LocalLearner::finish_loading(const RunConfig& config) {
  load_masters(directory_);
  directory_.config.dtype = saved_dtype(directory_.config.dtype, config.model.compute);
}

// Reads the weights from the files again, so that they are never all in memory beside the optimizer's state.
void LocalLearner::load_masters(const ModelDirectory& from) {
  const at::NoGradGuard no_grad;
  const auto masters = master_weights(*optimizer_.optimizer);
  if (masters.empty()) return;
  visit_model_tensors(from.base, [&](const std::string& name, const at::Tensor& tensor) {
    const auto master = masters.find(name);
    if (master != masters.end()) at::Tensor(master->second).copy_(tensor);
  });
}

void LocalLearner::prepare(const Batch& batch, double lr) {
  optimizer_.optimizer->set_lr(lr);
  if (step_->prepare(to_device_(batch).all_rows())) return;
  const NamedTensors weights = models::trainable_parameters(model_);
  StagedCheckpoint before(weights, state());
  before.copy(weights, state());
  Stats last;
  do {
    last = step_->stats();
    step(batch, lr);
  } while (!is_settled(last, step_->stats()));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights.size(); ++i) at::Tensor(weights[i].second).copy_(before.weights()[i].second);
  load_state(before.state());
}

TrainedStep LocalLearner::step(const Batch& batch, double lr) {
  optimizer_.optimizer->set_lr(lr);
  const auto [loss, norm, skipped] = (*step_)(to_device_(batch).all_rows());
  return {loss.item<double>(), norm.item<double>(), skipped.item<double>() != 0};
}

double LocalLearner::summed_loss(const Batch& rows) { return train::summed_loss(model_, to_device_(rows)); }

NamedTensors saved_weights(const ModelDirectory& directory, const models::Decoder& model,
                           const optim::Optimizer& optimizer) {
  if (directory.adapter) return models::adapter_state(model);
  const auto masters = master_weights(optimizer);
  NamedTensors weights = model->persistent_state();
  for (auto& [name, tensor] : weights) {
    const auto master = masters.find(name);
    if (master != masters.end()) tensor = master->second;
  }
  return weights;
}

NamedTensors LocalLearner::weights() { return saved_weights(directory_, model_, *optimizer_.optimizer); }

NamedTensors LocalLearner::state() {
  NamedTensors state = optimizer_.optimizer->named_state();
  state.emplace_back(kGeneratorState, default_generator_of(at::kCPU).get_state());
  for (const auto& [key, generator] : device_generators({model_->parameters().front()}))
    state.emplace_back(kDeviceGeneratorState, generator.get_state());
  return state;
}

uint64_t LocalLearner::staged_bytes() const {
  const optim::Optimizer& optimizer = *optimizer_.optimizer;
  return train::staged_bytes(saved_weights(directory_, model_, optimizer), optimizer.named_state());
}

uint64_t LocalLearner::saved_bytes() const {
  const optim::Optimizer& optimizer = *optimizer_.optimizer;
  return train::saved_bytes(saved_weights(directory_, model_, optimizer), optimizer.named_state());
}

void LocalLearner::write_checkpoint(const std::filesystem::path& checkpoint, const NamedTensors& weights,
                                    const NamedTensors& state, FileSystem& files) const {
  write_trained_files(checkpoint, directory_, made_of(weights), max_shard_bytes_, files);
  save_tensors(checkpoint / kOptimizerFile, state, {}, files);
}

void LocalLearner::load_state(NamedTensors state) {
  std::erase_if(state, [&](const auto& item) {
    if (item.first == kGeneratorState)
      default_generator_of(at::kCPU).set_state(item.second);
    else if (item.first != kDeviceGeneratorState)
      return false;
    else  // a run that goes on on the CPU has none
      for (auto& [key, generator] : device_generators({model_->parameters().front()})) generator.set_state(item.second);
    return true;
  });
  optimizer_.optimizer->load_state(state);
}

void LocalLearner::load_optimizer(const std::filesystem::path& checkpoint) {
  load_state(load_tensors(TensorFiles(checkpoint, kOptimizerFiles)));
  // The parameters are the rounded master weights, as the update leaves them.
  const at::NoGradGuard no_grad;
  const auto masters = master_weights(*optimizer_.optimizer);
  for (const auto& [name, parameter] : model_->persistent_state()) {
    const auto master = masters.find(name);
    if (master != masters.end()) at::Tensor(parameter).copy_(master->second);
  }
}

void LocalLearner::restore(const std::filesystem::path& checkpoint) {
  const ModelDirectory from = open_model_directory(checkpoint);
  load_weights(from, model_);
  load_masters(from);
  load_optimizer(checkpoint);
}

void LocalLearner::restore_fresh(const std::filesystem::path& model, const RunConfig& config) {
  ModelDirectory fresh = open_model_directory(model);
  choose_adapter(config, fresh);
  load_weights(fresh, model_);
  optimizer_.optimizer->load_state(
      choose_optimizer(config, models::trainable_parameters(model_)).optimizer->named_state());
  load_masters(fresh);
}

Sample LocalLearner::sample(const std::string& prompt, const SampleOptions& options) {
  return sample_text(model_, directory_.tokenizer, prompt, options);
}

std::optional<std::string> LocalLearner::find_nonfinite_in(const Batch& on_host) {
  const Batch batch = to_device_(on_host);
  for (const auto& [name, tensor] : model_->persistent_state())
    if (!at::isfinite(tensor).all().item<bool>()) return str("the weight {}", name);
  const auto found = find_nonfinite([&] {
    const at::Tensor token_count = models::count_tokens(batch.labels);
    for (int64_t i = 0; i < batch.tokens.size(0); ++i) {
      const Batch micro = batch.micro_batch(i);
      const at::Tensor loss = model_->loss(micro.tokens, micro.labels, token_count, micro.documents);
      (optimizer_.scaler ? loss * optimizer_.scaler->scale() : loss).backward();
    }
  });
  optimizer_.optimizer->zero_grad();
  return found;
}

}  // namespace stepc::train
