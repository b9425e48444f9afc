// A step of the whole batch cut in time: what each micro-batch does, and what is done once for all of them. The step
// was partitioned over a mesh with an axis of micro-batches (kMicroBatchAxis), so sums over them stand in it as
// collectives along that axis: what comes before those is a micro-batch's, what follows from them is the update. Plain
// data.
//
//   micro-batch:  held "sum 0 f32[4, 8]" += gradient of its rows; returns its part of the loss
//   update:       parameters from held "sum 0 f32[4, 8]"; returns the sum of the parts
//
// A step of two gradients, the second of which begins with the whole of the first (sharpness-aware minimisation), has
// two rounds of micro-batches. The first round's update leaves what the second needs in further held tensors.
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
  // them, i64[], and an update what the micro-batches of its round and of those before return, of all of them,
  // (micro-batches, ...). What they hold between them are gradients that are no parameter's.
  struct Round {
    Graph micro_batch, update;
    std::vector<std::string> sums;  // zero before the first micro-batch
  };
  std::vector<Round> rounds;
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
  // What the step returns, in order: whether it is a host number, and its place among the last update's results; -1: an
  // undefined tensor.
  struct Result {
    bool is_number = false;
    int64_t place = -1;
  };
  std::vector<Result> results;
  // What the step's own code reads; behind `results` the last update returns it.
  std::vector<StageRead> reads;
};

// `graph`: one rank's step, before it is fused. `zero` (passes/partition/strategy.h): below 2 gradients are exchanged
// by the update, from 2 on what of an exchange leaves each rank a part is made by each micro-batch; below 3 each rank
// holds the whole of what an update leaves for the next round. UserError for a step that needs what all rows make
// before it goes on (batch statistics, numbers that its code makes of what it reads), for rows that do not divide, and
// for what micro-batches cannot change.
BatchCut cut_batch(const Graph& graph, int zero = 3);

}  // namespace stepc
