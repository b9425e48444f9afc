#include "train/learner.h"

#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "optim/clip.h"
#include "train/kernel_directory.h"

namespace stepc::train {
namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kGeneratorState = "cpu_generator";
constexpr std::string_view kMasterSuffix = ".master";

optim::AdamWOptions adamw_options(const RunConfig::Optim& optim) {
  return {.lr = optim.lr,
          .beta1 = optim.betas[0],
          .beta2 = optim.betas[1],
          .eps = optim.eps,
          .weight_decay = optim.weight_decay};
}

// "model.norm.weight.master" -> its tensor under "model.norm.weight".
std::map<std::string, at::Tensor> master_weights(const optim::AdamW& optimizer) {
  std::map<std::string, at::Tensor> masters;
  for (const auto& [name, tensor] : optimizer.named_state()) {
    if (name.ends_with(kMasterSuffix)) masters[name.substr(0, name.size() - kMasterSuffix.size())] = tensor;
  }
  return masters;
}

// Saved weights lose nothing: they have the wider of the directory's dtype and the dtype of the computation.
std::string saved_dtype(const std::string& from, const std::string& compute) {
  return from == "bfloat16" && compute == "bfloat16" ? "bfloat16" : "float32";
}

}  // namespace

Learner::Learner(ModelDirectory directory, const RunConfig& config)
    : directory_(std::move(directory)), model_(directory_.config, models::scalar_type(config.model.compute)) {
  const NamedTensors loaded = load_weights(directory_, model_);
  optimizer_ = std::make_shared<optim::AdamW>(model_->persistent_state(), adamw_options(config.optim));

  const torch::NoGradGuard no_grad;
  const auto masters = master_weights(*optimizer_);
  for (const auto& [name, tensor] : loaded) {
    const auto master = masters.find(name);
    if (master != masters.end()) at::Tensor(master->second).copy_(tensor);
  }
  directory_.config.dtype = saved_dtype(directory_.config.dtype, config.model.compute);

  Config engine;
  engine.mode = parse_mode(config.train.mode);
  engine.kernel_directory = kernel_directory();
  step_.emplace(accelerate(train_step(config.optim.clip), {model_}, {optimizer_}, engine));
}

// Each micro-batch adds the sum of its token losses over the token count of the whole batch, so the split does not
// change what is minimised.
Learner::TrainStep Learner::train_step(double clip) const {
  return [model = model_, optimizer = optimizer_, clip](const at::Tensor& batch) mutable {
    const int64_t seq_len = batch.size(2) - 1;
    const auto tokens = static_cast<double>(batch.size(0) * batch.size(1) * seq_len);
    const at::Tensor token_count = at::full({}, tokens, at::kFloat);
    at::Tensor total;
    for (const at::Tensor& micro : batch.unbind(0)) {
      const at::Tensor loss = model->loss(micro.narrow(1, 0, seq_len), micro.narrow(1, 1, seq_len), token_count);
      loss.backward();
      total = total.defined() ? total + loss.detach() : loss.detach();
    }
    std::vector<at::Tensor> parameters;
    for (const auto& [name, parameter] : optimizer->parameters()) parameters.push_back(parameter);
    const at::Tensor norm = optim::clip_grad_norm_(parameters, clip);
    optimizer->step();
    optimizer->zero_grad();
    return std::tuple(total, norm);
  };
}

StepResult Learner::step(const at::Tensor& batch, double lr) {
  optimizer_->set_lr(lr);
  const auto [loss, norm] = (*step_)(batch);
  return {loss.item<double>(), norm.item<double>()};
}

NamedTensors Learner::weights() const {
  const auto masters = master_weights(*optimizer_);
  NamedTensors weights = model_->persistent_state();
  for (auto& [name, tensor] : weights) {
    const auto master = masters.find(name);
    if (master != masters.end()) tensor = master->second;
  }
  return weights;
}

void Learner::save_model(const std::filesystem::path& destination) const {
  write_model_files(destination, directory_.config, directory_.companions, weights());
}

void Learner::save(const std::filesystem::path& checkpoint) const {
  save_model(checkpoint);
  NamedTensors state = optimizer_->named_state();
  state.emplace_back(kGeneratorState, at::globalContext().defaultGenerator(at::kCPU).get_state());
  save_tensors(checkpoint / kOptimizerFile, state);
}

void Learner::load_optimizer(const std::filesystem::path& checkpoint) {
  NamedTensors state = load_tensors(checkpoint / kOptimizerFile);
  std::erase_if(state, [](const auto& item) {
    if (item.first != kGeneratorState) return false;
    at::Generator(at::globalContext().defaultGenerator(at::kCPU)).set_state(item.second);
    return true;
  });
  optimizer_->load_state(state);
  // The parameters are the rounded master weights, as the update leaves them.
  const torch::NoGradGuard no_grad;
  const auto masters = master_weights(*optimizer_);
  for (const auto& [name, parameter] : model_->persistent_state()) {
    const auto master = masters.find(name);
    if (master != masters.end()) at::Tensor(parameter).copy_(master->second);
  }
}

}  // namespace stepc::train
