// What is trained: the model, its optimizer and the whole step (micro-batches, clipping, update) as one accelerated
// function. Its state goes into a checkpoint directory and comes back bit-equal.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "optim/adamw.h"
#include "train/model_directory.h"
#include "train/run_config.h"

namespace stepc::train {

struct StepResult {
  double loss = 0;  // mean over the tokens of the whole batch, nats
  double grad_norm = 0;
};

class Learner {
 public:
  // Takes the weights of the directory. float32 weights trained in bfloat16 are kept whole in the master weights.
  Learner(ModelDirectory directory, const RunConfig& config);

  // batch: int64 (grad_accum, batch_size, seq_len + 1)
  StepResult step(const at::Tensor& batch, double lr);

  // Model files and optimizer.safetensors, which also holds the random generator's state.
  void save(const std::filesystem::path& checkpoint) const;
  // Model files alone.
  void save_model(const std::filesystem::path& destination) const;
  // The optimizer's part of a checkpoint, after construction from its model files.
  void load_optimizer(const std::filesystem::path& checkpoint);

  [[nodiscard]] models::Decoder model() const { return model_; }
  [[nodiscard]] const ModelDirectory& directory() const { return directory_; }
  [[nodiscard]] const Stats& stats() const { return step_->stats(); }
  [[nodiscard]] std::string report() const { return step_->report(); }

 private:
  using TrainStep = std::function<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&)>;

  [[nodiscard]] TrainStep train_step(double clip) const;
  [[nodiscard]] NamedTensors weights() const;

  ModelDirectory directory_;
  models::Decoder model_;
  std::shared_ptr<optim::AdamW> optimizer_;
  std::optional<Accelerated<TrainStep>> step_;
};

}  // namespace stepc::train
