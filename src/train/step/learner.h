// What is trained: the model, its optimizer and the planned step (micro-batches, clipping, update). Its state goes into
// a checkpoint directory and comes back bit-equal. A LocalLearner is one process's own; a RankLearner is one of
// several, which make every call below together.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "engine/stepc.h"
#include "models/decoder.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"
#include "train/model/sample.h"
#include "train/step/batches.h"
#include "train/step/kept_state.h"
#include "train/step/optimizer_choice.h"

namespace stepc::train {

// What a step of training gives.
struct TrainedStep {
  double loss = 0;  // mean over the tokens of the whole batch, nats
  double grad_norm = 0;
  bool skipped = false;  // the gradient overflowed in float16: nothing was changed but the loss scale
};

class Learner {
 public:
  virtual ~Learner() = default;

  // Captures and plans the step, with no values and no memory. False: it is recorded while it runs.
  virtual bool plan(const Batch& batch) = 0;
  // Takes memory, and the weights of the directory. float32 weights trained in bfloat16 are kept whole in the master
  // weights.
  virtual void load(const RunConfig& config) = 0;
  // Verifies the step without effect, and plans it where plan() has not. Where that cannot be, takes steps on this
  // batch until they are replayed, and undoes them: weights, optimizer and random generator are as before. Recorded
  // steps round otherwise than fast mode's kernels do; after this, every step of a run comes from the same kernels, the
  // first one after a resume too, and a resumed run has the bits of one that never stopped.
  virtual void prepare(const Batch& batch, double lr) = 0;
  // Every step is prepared that will come.
  virtual void end_warm_up() = 0;
  // batch: (micro_batches, batch_size, seq), of all ranks together
  virtual TrainedStep step(const Batch& batch, double lr) = 0;
  // Of held-out rows (rows, seq), at most as many as a step has: the sum of the token losses, without dropout.
  virtual double summed_loss(const Batch& rows) = 0;

  // Steps that are replayed from now on are timed; then what the last of them took, if there was one.
  virtual void start_profile() = 0;
  virtual std::optional<Profile> finish_profile() = 0;

  // What this process writes of a checkpoint: the weights as they are saved, and the optimizer's and the random
  // generator's state, or the slices of them that are one rank's.
  virtual NamedTensors weights() = 0;
  virtual NamedTensors state() = 0;
  // Model files and optimizer.safetensors, or files of slices, from such lists or copies of them. Touches nothing that
  // a step does, so it may run beside one, on another thread.
  virtual void write_checkpoint(const std::filesystem::path& checkpoint, const NamedTensors& weights,
                                const NamedTensors& state, FileSystem& files) const = 0;
  // The optimizer's part of a checkpoint, after load() from its model files.
  virtual void load_optimizer(const std::filesystem::path& checkpoint) = 0;

  // Undoes the steps since a checkpoint of this run, or since its start: weights and optimizer are as they were there.
  virtual void restore(const std::filesystem::path& checkpoint) = 0;
  virtual void restore_fresh(const std::filesystem::path& model, const RunConfig& config) = 0;
  // What it holds, where that is certainly as the last step has left it: the one under way has not begun to change it.
  // For when a call has thrown, before the learner goes. nullopt: not certainly, or there is no other learner for it.
  virtual std::optional<KeptState> leave() { return std::nullopt; }
  // In place of load() and load_optimizer(): goes on with `kept`; a rank that has none takes what ranks with the same
  // parts have kept. False on all ranks, and nothing is done, where nobody has kept some part.
  virtual bool take_over(const KeptState* /*kept*/) { return false; }

  // Which op's result of a step on this batch is not a finite number first, and of several ranks on which; the weights
  // are looked at before it. nullopt: all is finite until the gradients are summed up. They are changed by it.
  virtual std::optional<std::string> find_nonfinite_in(const Batch& batch) = 0;

  // Of several ranks: which of what they hold alike they do not, and on which of them; the same text on all.
  virtual std::optional<std::string> find_unlike_replica() { return std::nullopt; }

  // Continues a text, without dropout.
  virtual Sample sample(const std::string& prompt, const SampleOptions& options) = 0;

  // Of a copy of what this process writes, with or without memory for it.
  [[nodiscard]] virtual uint64_t staged_bytes() const = 0;
  // Of the tensors in the files that it writes, likewise.
  [[nodiscard]] virtual uint64_t saved_bytes() const = 0;

  [[nodiscard]] virtual const ModelDirectory& directory() const = 0;
  [[nodiscard]] virtual Stats stats() const = 0;
  // `told`: the prediction as the run tells it (RunNumbers::told()).
  [[nodiscard]] virtual std::string report(const std::optional<Prediction>& told) const = 0;
  [[nodiscard]] virtual std::optional<Prediction> prediction() const = 0;
  [[nodiscard]] virtual std::optional<Target> weighed_with() const = 0;
  // Where every byte of a planned step goes, as step.memory_text() and memory_svg() say it.
  [[nodiscard]] virtual std::string memory_table() const = 0;
  [[nodiscard]] virtual std::string memory_picture() const = 0;
};

}  // namespace stepc::train
