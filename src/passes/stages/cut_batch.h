// A step of the whole batch cut in time: what each micro-batch does, and what is done once for all of them. The step
// was partitioned over a mesh with an axis of micro-batches (kMicroBatchAxis), so sums over them stand in it as
// collectives along that axis: what comes before those is a micro-batch's, what follows from them is the update. Plain
// data.
//
//   micro-batch:  held "sum 0 f32[4, 8]" += gradient of its rows; returns its part of the loss
//   update:       parameters from held "sum 0 f32[4, 8]"; returns the sum of the parts
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/stages/cut_stages.h"

namespace stepc {

struct BatchCut {
  int64_t micro_batches = 1;
  uint32_t batch = 0;  // tensors of the step's batch
  // All graphs are of the mesh without that axis. They take the batch's tensors, a micro-batch its rows of those that
  // are split; then, as further tensors of the batch, `before` and `numbers`, and at last a micro-batch its place among
  // them, i64[], and the update what a micro-batch returns, of all of them, (micro-batches, ...).
  Graph micro_batch, update;
  // Of sums that a micro-batch needs before it begins, which follow from the batch alone (how many tokens count): what
  // one micro-batch adds to each. A graph takes those before it.
  std::vector<Graph> before;
  std::vector<std::string> numbers;  // the keys of the host's numbers
  // By tensor of the batch that has rows: how the ranks' part of it lies, all micro-batches together, and which of its
  // dimensions micro-batches split.
  struct Rows {
    PartOf part;
    size_t dim = 0;
  };
  std::map<size_t, Rows> rows;
  std::vector<std::string> sums;  // held gradients, zero before the first micro-batch
  // What the step returns, in order: whether it is a host number, and its place among the update's results; -1: an
  // undefined tensor.
  struct Result {
    bool is_number = false;
    int64_t place = -1;
  };
  std::vector<Result> results;
  // What the step's own code reads; behind `results` the update returns it.
  std::vector<StageRead> reads;
};

// `graph`: one rank's step, before it is fused. UserError for a step that needs what all rows make before it goes on
// (batch statistics, numbers that its code makes of what it reads), for rows that do not divide, and for what
// micro-batches cannot change.
BatchCut cut_batch(const Graph& graph);

}  // namespace stepc
