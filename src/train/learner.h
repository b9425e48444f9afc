// What is trained: the model, its optimizer and the whole step (micro-batches, clipping, update) as one accelerated
// function. Its state goes into a checkpoint directory and comes back bit-equal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "train/batches.h"
#include "train/model_directory.h"
#include "train/optimizer_choice.h"
#include "train/run_config.h"
#include "train/train_step.h"

namespace stepc::train {

struct StepResult {
  double loss = 0;  // mean over the tokens of the whole batch, nats
  double grad_norm = 0;
  bool skipped = false;  // the gradient overflowed in float16: nothing was changed but the loss scale
};

class Learner {
 public:
  // Takes the weights of the directory. float32 weights trained in bfloat16 are kept whole in the master weights.
  Learner(ModelDirectory directory, const RunConfig& config);

  // batch: (grad_accum, batch_size, seq_len)
  StepResult step(const Batch& batch, double lr);

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
  [[nodiscard]] NamedTensors weights() const;

  ModelDirectory directory_;
  models::Decoder model_;
  ChosenOptimizer optimizer_;
  std::optional<Accelerated<TrainStep>> step_;
};

}  // namespace stepc::train
