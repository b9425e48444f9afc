// A step cut into functions, each of one stage of a pipeline: what a stage computes of a micro-batch in the forward and
// in the backward pass, and its part of the update. Only values that another function needs leave one. Plain data.
//
//   forward 0:  batch, parameters of stage 0  ->  v0
//   backward 1: batch, v0, parameters of stage 1  ->  loss, v1, gradients of stage 1     (the last stage's forward pass
//   backward 0: v1, v2 ...                        ->  gradients of stage 0                 is part of it)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/stages/place_nodes.h"

namespace stepc {

// One tensor that is made in one function and read in others, of the same stage or of other ones.
struct StageValue {
  TensorType type;
  uint32_t maker = 0;
  std::vector<uint32_t> users = {};  // in order
  bool operator==(const StageValue&) const = default;
};

struct StageFunction {
  std::string name;  // "forward 0"
  int64_t stage = 0;
  Phase phase = Phase::kForward;
  bool is_of_weights = false;  // of a backward pass that is two: the second
  uint32_t reads = 0;          // of an update: the step's own code has read so many numbers before it runs (StageRead)
  // Takes values as tensors of the batch, behind the batch's own: takes[i] is number StageCut::batch + i. Returns the
  // step's results that are made here, then the values that it gives.
  Graph graph = {};
  std::vector<uint32_t> takes = {}, gives = {};  // values
  std::vector<uint32_t> returns = {};            // which of the step's returned tensors its first are
};

// A number that the step's own code reads and decides by. What runs before it changes nothing of the program.
struct StageRead {
  uint32_t event = 0;                  // among the trace's
  uint32_t result = 0;                 // among what the update returns
  std::vector<uint32_t> numbers = {};  // tensors of the update's batch, which the code gives between it and the next
};

struct StageCut {
  int64_t stages = 1;
  bool splits_backward = false;
  uint32_t batch = 0;                    // tensors of the step's batch
  std::vector<StageFunction> functions;  // in an order in which they can run
  std::vector<StageValue> values;
  bool draws = false;                    // random numbers, from the process's generator
  std::vector<TensorType> returns = {};  // of the step
};

// Of a micro-batch, or of a forward pass alone. What is added to the held gradient of a parameter of several stages is
// added on each of them: its gradient is the sum over them. `splits_backward`: what of a stage's backward pass other
// stages need, and what the step returns, is a function ("inputs 1"), and the rest, which adds to gradients, another
// one
// ("weights 1"). UserError for a step that cannot be cut.
StageCut cut_micro_batch(const Graph& graph, const StagePlaces& places, bool splits_backward = false);

// Of an update. `holders`: by parameter the stages that hold it, it's gradient and its optimizer state, in order; what
// belongs to no parameter is on all stages. Numbers that follow from parameters of several stages (the norm) go from
// the first stage of each to all stages, and each computes the rest. What `reads`, in order, are of is there on all
// stages before anything that follows from it runs, and before anything is updated. UserError where more than numbers
// would go.
StageCut cut_update(const Graph& graph, int64_t stages, const std::map<std::string, std::vector<int64_t>>& holders,
                    const std::vector<StageRead>& reads = {});

// The parameter that an input of the program's belongs to, if it is one of `holders` or kept for one; else nullptr.
const std::vector<int64_t>* holders_of(InputKind kind, const std::string& key,
                                       const std::map<std::string, std::vector<int64_t>>& holders);

}  // namespace stepc
