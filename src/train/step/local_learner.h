// The Learner of a process that trains alone: it has the model whole, and the step is accelerated.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/step/learner.h"
#include "train/step/training_step.h"

namespace stepc::train {

// The weights of a checkpoint: master weights, where there are such, or an adapter's alone.
NamedTensors saved_weights(const ModelDirectory& directory, const models::Decoder& model,
                           const optim::Optimizer& optimizer);
// Under the names of their weights.
std::map<std::string, at::Tensor> master_weights(const optim::Optimizer& optimizer);
// Saved weights lose nothing: they have the wider of the directory's dtype and the dtype of the computation.
std::string saved_dtype(const std::string& from, const std::string& compute);

inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr std::string_view kMasterSuffix = ".master";
inline constexpr double kBytesPerGb = 1e9;

class LocalLearner final : public Learner {
 public:
  // Of shapes alone as far as that can be, so that the step is planned before there is memory for it: load() follows.
  // `target`: that an earlier run's plan was weighed with, where this one goes on.
  LocalLearner(ModelDirectory directory, const RunConfig& config, std::optional<Target> target = {});
  bool plan(const Batch& batch) override;
  void load(const RunConfig& config) override;
  void prepare(const Batch& batch, double lr) override;
  void end_warm_up() override { step_->end_warm_up(); }
  TrainedStep step(const Batch& batch, double lr) override;
  double summed_loss(const Batch& rows) override;

  void start_profile() override { step_->start_profile(); }
  std::optional<Profile> finish_profile() override { return step_->finish_profile(); }

  NamedTensors weights() override;
  NamedTensors state() override;
  void write_checkpoint(const std::filesystem::path& checkpoint, const NamedTensors& weights, const NamedTensors& state,
                        FileSystem& files) const override;
  void load_optimizer(const std::filesystem::path& checkpoint) override;
  void restore(const std::filesystem::path& checkpoint) override;
  void restore_fresh(const std::filesystem::path& model, const RunConfig& config) override;
  // In one eager forward and backward pass.
  std::optional<std::string> find_nonfinite_in(const Batch& batch) override;
  Sample sample(const std::string& prompt, const SampleOptions& options) override;

  [[nodiscard]] uint64_t staged_bytes() const override;
  [[nodiscard]] uint64_t saved_bytes() const override;

  [[nodiscard]] const ModelDirectory& directory() const override { return directory_; }
  [[nodiscard]] Stats stats() const override { return step_->stats(); }
  [[nodiscard]] std::string report(const std::optional<Prediction>& told) const override { return step_->report(told); }
  [[nodiscard]] std::optional<Prediction> prediction() const override { return step_->prediction(); }
  [[nodiscard]] std::optional<Target> weighed_with() const override { return step_->weighed_with(); }
  [[nodiscard]] std::string memory_table() const override { return step_->memory_text(); }
  [[nodiscard]] std::string memory_picture() const override { return step_->memory_svg(); }

 private:
  void finish_loading(const RunConfig& config);
  // Weights of another dtype than the model's are kept whole in the master weights.
  void load_masters(const ModelDirectory& from);
  // What state() returned.
  void load_state(NamedTensors state);

  at::Device device_;
  BatchCopier to_device_;
  uint64_t max_shard_bytes_;
  ModelDirectory directory_;
  models::Decoder model_ = nullptr;
  ChosenOptimizer optimizer_;
  std::optional<Accelerated<TrainStep>> step_;
  bool is_loaded_ = false;
};

}  // namespace stepc::train
