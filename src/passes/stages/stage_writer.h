// StageWriter: writes the functions of a StageCut, the last one first, so that what each needs of others is known when
// those are written. Internal to passes/stages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/stages/cut_stages.h"

namespace stepc {

// What a function leaves of the step, by its place in graph.outputs.
struct StageOutput {
  uint32_t output = 0;
  TensorId tensor;
};

// How many tensors the step's batch has.
uint32_t batch_tensors(const Graph& graph);

class StageWriter {
 public:
  // `functions`: with names, stages and phases, in the order in which they can run; their graphs are made here.
  // `made_in`: in which of them a tensor is made that `function` reads; the same one, or nothing: it makes it itself.
  using MadeIn = std::function<std::optional<uint32_t>(TensorId tensor, uint32_t function)>;
  StageWriter(const Graph& graph, int64_t stages, std::vector<StageFunction> functions, MadeIn made_in);

  // `outputs`: by function.
  StageCut write(const std::vector<std::vector<StageOutput>>& outputs);

 private:
  void write_function(uint32_t function, const std::vector<StageOutput>& outputs);
  uint32_t value_of(TensorId tensor, uint32_t maker);

  const Graph& graph_;
  MadeIn made_in_;
  StageCut cut_;
  std::map<TensorId, uint32_t> values_;
  std::vector<TensorId> tensor_of_;           // by value
  std::map<uint32_t, uint32_t> returned_at_;  // by output: which of the step's returns
};

}  // namespace stepc
