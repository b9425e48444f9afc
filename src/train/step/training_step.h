// The step that a run takes, accelerated: as one plan, or as two, a micro-batch's and the update's
// (train/step/train_step.h). Shares the model and the optimizer with its caller.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "train/config/run_config.h"
#include "train/step/batches.h"
#include "train/step/optimizer_choice.h"
#include "train/step/train_step.h"

namespace stepc::train {

// Of the engine, as a run's configuration has it.
Config engine_config(const RunConfig& config, Mode mode, Capture capture);

class TrainingStep {
 public:
  // In parts it holds gradients from now on, which are as virtual as the parameters are.
  TrainingStep(models::Decoder model, ChosenOptimizer optimizer, double clip, int64_t micro_batches, Config config);

  // Captures and plans, with no values and no memory. False: it is recorded while it runs.
  bool capture(const Batch& batch);
  // Takes memory for what it holds, where it has none yet.
  void load();
  // Verifies without effect, and plans where capture() has not. Whether steps will be replayed.
  bool prepare(const Batch& batch);
  // batch: (micro-batches, rows, seq). Results are TrainStep's.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> operator()(const Batch& batch);
  // The last one was replayed, or ran as it is because no plan came of it.
  [[nodiscard]] bool is_settled() const { return is_settled_; }
  // Plans made from now on are late ones.
  void end_warm_up();
  // After backward passes that were not a step's.
  void clear_gradients();

  // Of both parts; what describes one plan is that of the larger.
  [[nodiscard]] Stats stats() const;
  [[nodiscard]] std::string report() const;
  // Of a whole step, all its micro-batches.
  [[nodiscard]] std::optional<Prediction> prediction() const;
  [[nodiscard]] std::optional<Target> weighed_with() const;
  [[nodiscard]] std::string memory_text() const;
  [[nodiscard]] std::string memory_svg() const;
  void start_profile();
  // Of the last micro-batch and the update.
  std::optional<Profile> finish_profile();

 private:
  [[nodiscard]] bool update_is_larger() const;
  [[nodiscard]] std::vector<at::Tensor> inputs(const Batch& batch) const;
  std::tuple<at::Tensor, at::Tensor, at::Tensor> run(const Batch& batch);

  ChosenOptimizer optimizer_;
  int64_t micro_batches_;
  std::optional<Accelerated<TrainStep>> whole_;  // or
  std::optional<Accelerated<MicroStep>> micro_;
  std::optional<Accelerated<UpdateStep>> update_;
  bool is_settled_ = false;
};

}  // namespace stepc::train
