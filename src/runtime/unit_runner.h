// UnitRunner: runs the units of a GraphPlan, each on tensors that lie where the plan says. Owns those over the arena,
// which last from run to run; holds the program's, and those that outlive the step, for the length of a Step.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/arena.h"
#include "runtime/graph_plan.h"
#include "runtime/run_times.h"
#include "runtime/unit_memory.h"

namespace stepc {

class UnitRunner {
 public:
  // `plan` outlives the runner.
  explicit UnitRunner(const GraphPlan& plan);

  // One run of all units, in an arena that nobody else uses meanwhile.
  class Step {
   public:
    Step(UnitRunner& runner, Arena& arena);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    UnitRunner& runner_;
  };

  void bind_input(size_t input, const at::Tensor& tensor);
  // Units [begin, end) of the plan. `times`, if there is one, gets when each of them ran.
  void run(size_t begin, size_t end, RunTimes* times = nullptr);
  // Undefined for what is never in memory, and for what no unit has made yet.
  const at::Tensor& value(TensorId tensor) const { return values_[tensor.index()]; }
  UnitMemory& memory() { return memory_; }

  // After the first run: `plan`, the runner's own, gets the scratch memory that its units turned out to need.
  void apply_what_was_learnt(GraphPlan& plan);

 private:
  void bind_arena(std::byte* arena);
  void bind_views_of(TensorId tensor);
  std::vector<at::Tensor> values_of(const std::vector<TensorId>& tensors) const;
  void run_unit(const Unit& unit);
  template <class Call>
  void run_call(const Unit& unit, const Call& call);
  void time_unit(size_t unit, RunTimes& times);
  void note_places(const Unit& unit);
  std::vector<UnitMemory::Result> results_of(const Node& node) const;
  std::vector<at::Tensor> run_node(const Node& node, const std::optional<OpaqueCall>& opaque);
  void place_results(const Node& node, std::vector<at::Tensor> results);
  void make_own(TensorId tensor);
  bool is_in_arena(const at::Tensor& tensor) const;

  const GraphPlan& plan_;
  std::vector<at::Tensor> values_;                 // by tensor
  std::vector<std::vector<NodeId>> views_of_;      // by tensor: what is a window on it, directly
  std::vector<std::vector<TensorId>> written_to_;  // by graph input: what lies in its memory
  std::vector<TensorId> of_step_;                  // let go of after a run
  std::byte* arena_ = nullptr;                     // that the values are bound to
  UnitMemory memory_;
  std::vector<uint64_t> learnt_;  // by unit: scratch bytes; empty once they are applied
  bool ran_blocked_ = false;      // the last node that ran took a blocked kernel
};

}  // namespace stepc
