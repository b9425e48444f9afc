// What is trained: the model, its optimizer and the accelerated step (micro-batches, clipping, update). Its state goes
// into a checkpoint directory and comes back bit-equal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"
#include "train/step/batches.h"
#include "train/step/optimizer_choice.h"
#include "train/step/training_step.h"

namespace stepc::train {

struct StepResult {
  double loss = 0;  // mean over the tokens of the whole batch, nats
  double grad_norm = 0;
  bool skipped = false;  // the gradient overflowed in float16: nothing was changed but the loss scale
};

// The weights of a checkpoint: master weights, where there are such, or an adapter's alone.
NamedTensors saved_weights(const ModelDirectory& directory, const models::Decoder& model,
                           const optim::Optimizer& optimizer);

class Learner {
 public:
  // Of shapes alone as far as that can be, so that the step is planned before there is memory for it: load() follows.
  // `target`: that an earlier run's plan was weighed with, where this one goes on.
  Learner(ModelDirectory directory, const RunConfig& config, std::optional<Target> target = {});
  // Captures and plans the step, with no values and no memory. False: it is recorded while it runs.
  bool plan(const Batch& batch);
  // Takes memory, and the weights of the directory. float32 weights trained in bfloat16 are kept whole in the master
  // weights.
  void load(const RunConfig& config);

  // Verifies the step without effect, and plans it where plan() has not. Where that cannot be, takes steps on this
  // batch until they are replayed, and undoes them: weights, optimizer and random generator are as before. Recorded
  // steps round otherwise than fast mode's kernels do; after this, every step of a run comes from the same kernels, the
  // first one after a resume too, and a resumed run has the bits of one that never stopped.
  void prepare(const Batch& batch, double lr);
  // Every step is prepared that will come.
  void end_warm_up() { step_->end_warm_up(); }
  // batch: (grad_accum, batch_size, seq)
  StepResult step(const Batch& batch, double lr);

  // Steps that are replayed from now on are timed; then what the last of them took, if there was one.
  void start_profile() { step_->start_profile(); }
  std::optional<Profile> finish_profile() { return step_->finish_profile(); }

  // What a checkpoint holds: the weights as they are saved, and the optimizer's and the random generator's state.
  [[nodiscard]] NamedTensors weights() const;
  [[nodiscard]] NamedTensors state() const;
  // Model files and optimizer.safetensors, from such lists or copies of them. Touches nothing that a step does, so it
  // may run beside one, on another thread.
  void write_checkpoint(const std::filesystem::path& checkpoint, const NamedTensors& weights, const NamedTensors& state,
                        FileSystem& files) const;
  // Model files alone.
  void save_model(const std::filesystem::path& destination, FileSystem& files) const;
  // The optimizer's part of a checkpoint, after construction from its model files.
  void load_optimizer(const std::filesystem::path& checkpoint);
  // Everything anew, from a checkpoint, or (fresh) as the constructor left it for this directory and config.
  void restore(const std::filesystem::path& checkpoint);
  void restore_fresh(const std::filesystem::path& model, const RunConfig& config);
  // Which module's op first makes a value that is not finite, in one eager forward and backward pass over the batch.
  // Changes no weight.
  std::optional<std::string> find_nonfinite_in(const Batch& batch);

  // Of a copy of the two, with or without memory for them.
  [[nodiscard]] uint64_t staged_bytes() const;

  [[nodiscard]] models::Decoder model() const { return model_; }
  [[nodiscard]] const ModelDirectory& directory() const { return directory_; }
  [[nodiscard]] Stats stats() const { return step_->stats(); }
  [[nodiscard]] std::string report() const { return step_->report(); }
  [[nodiscard]] std::optional<Prediction> prediction() const { return step_->prediction(); }
  [[nodiscard]] std::optional<Target> weighed_with() const { return step_->weighed_with(); }
  // Where every byte of a planned step goes, as step.memory_text() and memory_svg() say it.
  [[nodiscard]] std::string memory_table() const { return step_->memory_text(); }
  [[nodiscard]] std::string memory_picture() const { return step_->memory_svg(); }

 private:
  void finish_loading(const RunConfig& config);
  // Weights of another dtype than the model's are kept whole in the master weights.
  void load_masters(const ModelDirectory& from);
  // What state() returned.
  void load_state(NamedTensors state);

  uint64_t max_shard_bytes_;
  ModelDirectory directory_;
  models::Decoder model_ = nullptr;
  ChosenOptimizer optimizer_;
  std::optional<TrainingStep> step_;
  bool is_loaded_ = false;
};

}  // namespace stepc::train
