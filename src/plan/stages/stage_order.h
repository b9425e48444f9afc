// The order in which the ranks of a pipeline run the forward and backward passes of their stages, as data. A backward
// pass is one pass, or two: for its inputs, which the previous stage waits for, and for its weights, which nothing
// waits for (Qi et al., Zero bubble pipeline parallelism, 2023).
//
//   0F0,0F1,0B0,0F2,0B1,0B2      a row a rank, as torch.distributed.pipelining writes them: stage, pass (F, B, or I and
//   1F0,1B0,1F1,1B1,1F2,1B2      W), micro-batch
//
// If there are more stages than ranks, they go around the ranks: stage s is on rank s % ranks. Twice as many stages may
// also form a V: the first and the last stage are on the first rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

struct StagePass {
  enum class Kind : uint8_t { kForward, kBackward, kInputs, kWeights };
  int64_t stage = 0;
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  auto operator<=>(const StagePass&) const = default;

  // Whether the stage's data of the micro-batch is no longer needed after this pass.
  [[nodiscard]] bool ends() const { return kind == Kind::kBackward || kind == Kind::kWeights; }
};

struct StageOrder {
  int64_t stages = 1, micro_batches = 1;
  std::vector<std::vector<StagePass>> passes;  // by rank along pp
  bool is_v = false;
  bool operator==(const StageOrder&) const = default;

  [[nodiscard]] int64_t ranks() const { return static_cast<int64_t>(passes.size()); }
  [[nodiscard]] int64_t rank_of(int64_t stage) const {
    return is_v && stage >= ranks() ? stages - 1 - stage : stage % ranks();
  }
  // Whether some backward pass is split in two.
  [[nodiscard]] bool splits_backward() const;
};

// All forward passes, then all backward passes. `chunks`: stages on each rank.
StageOrder gpipe_order(int64_t ranks, int64_t micro_batches, int64_t chunks = 1);
// Each rank takes a backward pass as soon as it can, so rank r holds at most ranks - r micro-batches (Narayanan et al.,
// Memory-efficient pipeline-parallel DNN training, 2021). Throws UserError for fewer micro-batches than ranks.
StageOrder one_forward_one_backward(int64_t ranks, int64_t micro_batches);
// The same with several stages on each rank. A rank takes as many micro-batches of a stage as there are ranks before it
// takes the next stage: it waits less, and holds and sends more (Narayanan et al., Efficient large-scale language model
// training on GPU clusters using Megatron-LM, 2021). Throws UserError unless the number of micro-batches is a multiple
// of the ranks.
StageOrder interleaved_order(int64_t ranks, int64_t micro_batches, int64_t chunks);

// 1F1B whose backward passes for weights fill gaps; as many of them are delayed as keep all ranks at the first rank's
// memory (ZB-H1 of the paper above). Throws UserError for fewer micro-batches than ranks.
StageOrder zero_bubble_h1(int64_t ranks, int64_t micro_batches);
// Two stages on each rank, in a V: the memory of 1F1B, evenly on all ranks, and no bubble if all passes take the same
// time (ZB-V; Qi et al., Pipeline parallelism with controllable memory, 2024).
StageOrder zero_bubble_v(int64_t ranks, int64_t micro_batches);
// The same with forward and backward passes side by side in the middle (DualPipe-V: DeepSeek-V3, 2024, cut in half).
// Throws UserError for fewer micro-batches than stages.
StageOrder dual_pipe_v(int64_t ranks, int64_t micro_batches);

// "gpipe", "1f1b" (interleaved with more than one chunk), "zb-h1", "zb-v", "dualpipe-v", or a file in the form above.
// Throws UserError for any other name, for `chunks` that an order cannot have, and for a file that verify() refuses.
StageOrder stage_order(const std::string& name, int64_t ranks, int64_t micro_batches, int64_t chunks = 1);

// Throws UserError that names a pass that is missing, occurs twice or is on another rank than its stage. make_program()
// finds ranks that wait for each other forever.
void verify(const StageOrder& order);

std::string to_csv(const StageOrder& order);
StageOrder parse_stage_order(std::string_view csv);

// The number of stages on each rank that the named order fixes; none: the order takes any number.
std::optional<int64_t> chunks_of(const std::string& name);

// The most micro-batches of a stage that are between their forward pass and the end of their backward pass.
int64_t live_micro_batches(const StageOrder& order, int64_t stage);

}  // namespace stepc
