// The batch of a step on ranks: which dimension of each tensor is a rank's rows, the rows of all ranks together, and
// the part that a plan takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/ranks.h"
#include "engine/program/step_input.h"
#include "engine/ranks/parallel.h"
#include "schedule/schedule.h"

namespace stepc {

class BatchRows {
 public:
  // `parallel` outlives this. `strategy`: of the mesh without stages; `ranks`: of that mesh, `all`: of all stages,
  // which have the same rows.
  BatchRows(const Parallel& parallel, const Strategy& strategy, std::shared_ptr<Ranks> ranks,
            std::shared_ptr<Ranks> all);

  // From now on the ranks are the mesh's; both as the constructor's.
  void spread_over(const Mesh& mesh, std::shared_ptr<Ranks> ranks);

  // By tensor of the batch, which of its dimensions is this rank's rows; nothing: it has none, every rank has the same.
  using Rows = std::vector<std::optional<int64_t>>;
  // Whether what all ranks give together is more than what one gives.
  [[nodiscard]] bool are_split() const {
    return parallel_.batch == Parallel::Batch::kLocal && !data_axes_.empty() && !means_by_rank_;
  }
  // Other rows than the likeliest ones that a batch of these shapes may have: of one tensor they are another dimension
  // as long, or it has none; then of two tensors.
  [[nodiscard]] std::vector<Rows> others(const StepInput& input) const;
  // From now on batches of these shapes have such rows; nothing: the likeliest ones.
  void assume(const StepInput& input, const std::optional<Rows>& rows);

  // The batch of all ranks.
  [[nodiscard]] std::vector<at::Tensor> whole(const StepInput& input) const;
  // What the plan takes of the batch: rows that are the rank's part of a tensor go nowhere else.
  [[nodiscard]] std::vector<at::Tensor> for_plan(const Schedule& schedule, const StepInput& input) const;
  // `parts`: by tensor of the batch, of which tensor it is the rank's part.
  using Parts = std::map<size_t, std::optional<PartOf>>;
  [[nodiscard]] std::vector<at::Tensor> for_parts(const Parts& parts, const StepInput& input) const;

  // UserError: batch_dims names a dimension that is not there.
  void check_dims(const StepInput& input) const;
  // By all ranks together. UserError: ranks that share rows, or have the whole batch, differ in it.
  void check_shared(const StepInput& input) const;
  // UserError: the step writes to a tensor of the batch of which the rank computes with a copy. `copied`: those of
  // which the input has one.
  void check_writes(const Graph& local, const StepInput& input, const std::vector<bool>& copied) const;

 private:
  [[nodiscard]] std::optional<int64_t> rows_of(const StepInput& input, size_t tensor) const;
  [[nodiscard]] at::Tensor gathered(const at::Tensor& rows, int64_t dim) const;
  [[nodiscard]] bool takes_as_given(const std::optional<PartOf>& part, const StepInput& input, size_t tensor) const;

  const Parallel& parallel_;
  Mesh mesh_;
  bool means_by_rank_;
  std::shared_ptr<Ranks> ranks_, all_;
  std::vector<Axis> data_axes_;       // along which ranks have rows of their own
  std::map<std::string, Rows> rows_;  // by shapes of the batch, where they are not the likeliest
};

}  // namespace stepc
