// The Learner of one rank of several. The model and its optimizer stay shapes: the step is captured of them without
// being executed, cut for the mesh, and this rank holds its parts alone (engine/ranks/sharded_state.h), of a pipeline
// those of its stage. In micro-batches and stages it is a StagedStep. All ranks make every call together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "engine/ranks/common_machine.h"
#include "engine/ranks/rank_program.h"
#include "engine/ranks/replicas.h"
#include "engine/ranks/saved_slices.h"
#include "engine/ranks/sharded_state.h"
#include "engine/ranks/stage_steps.h"
#include "engine/ranks/staged_step.h"
#include "passes/partition/strategy.h"
#include "runtime/kernel_sources.h"
#include "train/step/learner.h"
#include "train/step/model_slices.h"

namespace stepc::train {

class RankLearner final : public Learner {
 public:
  // UserError for heads or classes that `strategy` cannot split. Warns where the ranks' machines differ. `target`: as
  // LocalLearner's. `device`: this rank's own.
  RankLearner(ModelDirectory directory, const RunConfig& config, Strategy strategy, std::shared_ptr<Ranks> ranks,
              const std::optional<Target>& target = {}, const at::Device& device = at::kCPU);

  bool plan(const Batch& batch) override;
  void load(const RunConfig& config) override;
  void prepare(const Batch& batch, double lr) override;
  void end_warm_up() override {}
  TrainedStep step(const Batch& batch, double lr) override;
  double summed_loss(const Batch& rows) override;
  // Every token takes a forward pass over all that the model sees.
  Sample sample(const std::string& prompt, const SampleOptions& options) override;

  void start_profile() override { timed_.clear(), is_timed_ = true; }
  // Of this rank: of its functions, each as it ran last.
  std::optional<Profile> finish_profile() override;

  // This rank's slices of them; no rank gathers what is saved.
  NamedTensors weights() override;
  NamedTensors state() override;
  void write_checkpoint(const std::filesystem::path& checkpoint, const NamedTensors& weights, const NamedTensors& state,
                        FileSystem& files) const override;
  void load_optimizer(const std::filesystem::path& checkpoint) override;
  void restore(const std::filesystem::path& checkpoint) override;
  void restore_fresh(const std::filesystem::path& model, const RunConfig& config) override;
  std::optional<KeptState> leave() override;
  bool take_over(const KeptState* kept) override;
  std::optional<std::string> find_nonfinite_in(const Batch& batch) override;
  std::optional<std::string> find_unlike_replica() override { return stepc::find_unlike_replica(state_); }
  [[nodiscard]] uint64_t staged_bytes() const override;
  [[nodiscard]] uint64_t saved_bytes() const override;

  [[nodiscard]] const ModelDirectory& directory() const override { return directory_; }
  [[nodiscard]] Stats stats() const override;
  [[nodiscard]] std::string report(const std::optional<Prediction>& told) const override;
  [[nodiscard]] std::optional<Prediction> prediction() const override;
  [[nodiscard]] std::optional<Target> weighed_with() const override;
  [[nodiscard]] std::string memory_table() const override;
  [[nodiscard]] std::string memory_picture() const override;

 private:
  // A step's plan: in one piece, or in functions.
  struct Programs {
    std::unique_ptr<RankProgram> whole;
    std::unique_ptr<StagedStep> staged;
    [[nodiscard]] std::vector<const RankProgram*> all() const;
  };
  std::vector<at::Tensor> run_staged(StagedStep& step, const std::vector<at::Tensor>& rows);
  Programs& programs_for(const Batch& batch);
  [[nodiscard]] std::vector<at::Tensor> rows_of(const Batch& batch) const;
  std::unique_ptr<RankProgram> program_of(VirtualPlan captured, Context context);
  // One without dropout and without an update, by what it does at which sizes: what it returns first.
  struct Other {
    std::unique_ptr<RankProgram> own;
    std::unique_ptr<StageRun> stages;
  };
  at::Tensor run_other(const std::string& name, Context context, const std::function<VirtualPlan()>& capture,
                       const std::vector<at::Tensor>& batch);
  [[nodiscard]] std::vector<const RankProgram*> step_programs() const;
  at::Tensor next_logits(const std::vector<int64_t>& ids);
  void restore_from(ModelDirectory directory);
  [[nodiscard]] CompileOptions compile_options() const;
  // From which programs draw.
  [[nodiscard]] at::Generator draws() const;
  // The program's run that comes next counts, and changes the program's tensors where it says so alone.
  void note_run_of(const RankProgram& program);
  [[nodiscard]] const RankProgram& largest() const;
  [[nodiscard]] std::string plan_hash() const;
  // Of the step under way, by the instruction that was begun last.
  [[nodiscard]] bool may_have_changed() const;
  [[nodiscard]] SavedSlices weight_slices() const;
  [[nodiscard]] SavedSlices state_slices() const;

  RunConfig config_;
  at::Device device_;
  BatchCopier to_device_;
  Mesh mesh_;          // of all ranks
  Strategy strategy_;  // of a stage's
  std::shared_ptr<Ranks> ranks_;
  StageRanks stage_ranks_;
  ModelDirectory directory_;
  CommonMachine machine_;
  KernelSources kernels_;
  models::Decoder model_ = nullptr;  // shapes
  ChosenOptimizer optimizer_;        // shapes
  ShardedState state_;
  std::unique_ptr<StageSteps> stages_;  // none: steps are whole
  bool is_timed_ = false;
  // What is under way, for leave().
  enum class Doing : uint8_t {
    kNothing,    // between two steps
    kProgram,    // running_'s run, which counts
    kGradients,  // the micro-batches' runs, which change nothing else
    kUnknown,    // or what may change anything
  };
  Doing doing_ = Doing::kUnknown;
  const RankProgram* running_ = nullptr;
  GeneratorSnapshot before_step_;  // the generator
  std::map<const RankProgram*, RunTimes> timed_;
  std::map<int64_t, Programs> programs_;  // by the rows' length
  std::map<std::string, Other> others_;
};

}  // namespace stepc::train
