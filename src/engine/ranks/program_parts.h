// The program's tensors on the ranks of a mesh. A split tensor lies in parts, and the program's own tensor keeps only
// its sizes; a tensor that is whole on a rank stays in the program's memory. Owns the parts; borrows the program. All
// ranks make every call together.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/check.h"
#include "comm/ranks.h"
#include "engine/program/program.h"
#include "engine/program/saved_program.h"
#include "engine/ranks/sharded_state.h"
#include "engine/ranks/stage_ranks.h"

namespace stepc {

class ProgramParts {
 public:
  ProgramParts(Program& program, const StageRanks& stages)
      : program_(program), ranks_(stages.all), stages_(stages), state_(stages.stage_mesh, stages.stage) {}
  using Key = std::pair<Owner, std::string>;
  using Tensors = std::vector<std::pair<Key, at::Tensor>>;

  // Before a plan has anything of the program: from now on the ranks are these.
  void spread_over(const StageRanks& stages) {
    INTERNAL_CHECK(parts_.empty() && held_.empty(), "the program's tensors lie in parts already");
    stages_ = stages;
    state_ = ShardedState(stages_.stage_mesh, stages_.stage);
  }

  ShardedState& state() { return state_; }
  [[nodiscard]] const ShardedState& state() const { return state_; }

  // Takes over what a plan has of the program and no plan had before. Rank 0's values count; false: others differed.
  // Of a pipeline each stage keeps its own, and the others have sizes alone.
  using Inputs = std::vector<std::pair<InputKind, std::string>>;
  [[nodiscard]] bool take(const Inputs& inputs);
  // What the program has put in the place of what the ranks hold, a checkpoint's state for example; taken over
  // likewise. `tensors`: the program's by its keys.
  [[nodiscard]] Tensors moved_since(const std::vector<at::Tensor>& tensors) const;
  [[nodiscard]] bool take(const Tensors& moved);

  // Gives those of the tensors that are held in parts their whole values, one after the other, where `keeps`.
  void gather(const std::vector<at::Tensor>& tensors, bool keeps);
  // The way back: with `takes` what they hold by now counts, and all ranks have the same there.
  void scatter(const std::vector<at::Tensor>& tensors, bool takes);

  // As Step's: each rank writes its slices, and reads what it holds. Values of tensors that no step has taken yet stay
  // in the files until one does, where the program has no memory for them. Companions of ranks other than the first
  // begin as their slices do (beginning_of_slice_files()).
  std::filesystem::path save(const std::filesystem::path& output, int64_t number, const Companions& companions);
  using AcceptFn = std::function<void(const std::filesystem::path& checkpoint)>;
  Checkpoint load(const std::filesystem::path& from, const AcceptFn& accept);

  // What the program saves, as others know parts: `whole` has the values where the rank holds no part of it, and where
  // no dimensions say the part, once it is gathered.
  struct HeldTensor {
    std::string name;
    bool is_of_model = false;
    at::Tensor whole;                                // the program's
    std::optional<std::vector<int64_t>> split = {};  // by axis of a stage's mesh, as ShardedState::split_dims()
    at::Tensor part = {};                            // then the rank's part
    bool is_own = true;                              // false: another stage of the pipeline has it
  };
  // Of a pipeline those of this rank's stage, and of others' those that take all ranks to be whole.
  std::vector<HeldTensor> held_tensors();

 private:
  bool have_same_values(const Tensors& tensors);
  void find_stages(const Tensors& tensors);
  [[nodiscard]] bool is_everywhere(const Key& key) const;
  void take(const Key& key, const at::Tensor& tensor);
  [[nodiscard]] bool is_held(const Key& key, const at::Tensor& tensor) const;
  void write_own_slices(const std::filesystem::path& directory, FileSystem& files);

  Program& program_;
  std::shared_ptr<Ranks> ranks_;
  StageRanks stages_;
  ShardedState state_;
  std::map<const void*, Key> parts_;               // by storage: the program's tensors whose values lie in parts
  std::map<Key, std::vector<int64_t>> stages_of_;  // of a pipeline: the ranks along pp that have it
  std::map<Key, const void*> held_;                // the storage that the program had in each place when it was taken
  std::map<Key, std::shared_ptr<SavedProgram>> saved_;  // whose values are in files until a step takes them
};

}  // namespace stepc
