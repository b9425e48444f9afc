// How a step is cut into the stages of a pipeline: where stages begin, which stage holds which tensors of the program,
// and the order of their passes. Nothing is run: the same for the ranks of a run and for a plan on paper.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/compile.h"
#include "engine/plan/virtual_plan.h"
#include "passes/recompute.h"
#include "passes/stages/cut_batch.h"
#include "plan/stages/stage_program.h"

namespace stepc {

// What a person says of a pipeline.
struct Pipeline {
  int64_t ranks = 1;  // along pp
  int64_t micro_batches = 1;
  std::vector<std::string> stages = {};  // modules that they begin with; none: by cost
  std::string order = "1f1b";
  int64_t chunks = 1;  // stages of a rank
  bool operator==(const Pipeline&) const = default;
};
// Stages of a rank in its order.
int64_t chunks_of(const Pipeline& pipeline);
// Its order. UserError for what there is no order of.
StageOrder order_of(const Pipeline& pipeline);

// A part of the step as functions and the calls of them.
struct StageParts {
  StageCut cut;
  StageProgram program;
};
// By tensor of the program, the ranks along pp that hold it.
using StageHolders = std::map<std::string, std::vector<int64_t>>;

// Whether there is a backward pass.
bool is_training(const Graph& micro_batch);

// A captured step as one rank of the mesh without stages runs it. `options`: of that mesh; its strategy learns how
// parameters lie, and which way attention goes, and they learn of the device that the step lies on, where its functions
// have all of their batch. UserError for a step that could not be captured.
Graph rank_graph_of(const VirtualPlan& captured, KernelSources& kernels, CompileOptions& options);
// The same in micro-batches. UserError as cut_batch().
BatchCut cut_in_time(const VirtualPlan& captured, int64_t micro_batches, KernelSources& kernels,
                     CompileOptions& options);

class StageCuts {
 public:
  // UserError as order_of().
  explicit StageCuts(const Pipeline& pipeline);

  // All graphs are rank_graph_of()'s, or cut of one. The first of micro_batch() and forward() says which stage holds
  // what. UserError for modules that stages cannot begin with, and for a later one that wants parameters elsewhere.
  StageParts micro_batch(const Graph& graph);
  // A micro-batch's graph of which stages keep less for their backward passes (passes/stages/recompute_stages.h).
  RecomputeResult recomputed(const Graph& graph, const RecomputeOptions& options);
  // Without a backward pass.
  StageParts forward(const Graph& graph, int64_t micro_batches);
  // What follows on each round of micro-batches. `sums` gets who holds what they add up and leave for later parts.
  [[nodiscard]] std::vector<StageParts> updates(const BatchCut& cut, const std::vector<StageParts>& micro_batches,
                                                StageHolders& sums) const;

  [[nodiscard]] int64_t ranks() const { return order_.ranks(); }  // along pp
  [[nodiscard]] const StageOrder& order() const { return order_; }
  // Whether that rank along pp saves the tensor: of several that hold it the first.
  [[nodiscard]] bool saves(int64_t rank, Owner owner, const std::string& key) const;
  // By stage, the module that it begins with.
  [[nodiscard]] const std::vector<std::string>& begins() const { return begins_; }

 private:
  StagePlaces places_of(const Graph& graph);
  [[nodiscard]] StageHolders holders() const;  // of parameters

  StageOrder order_;
  std::vector<std::string> begins_;
  StageHolders holders_;  // of parameters: stages
};

}  // namespace stepc
