// The order in which the ranks of a pipeline take the forward and backward passes of their stages: who runs what when,
// as data. Stages that are more than the ranks go around them: stage s is on rank s % ranks.
//
//   0F0,0F1,0B0,0F2,0B1,0B2      a row a rank, as torch.distributed.pipelining writes them: stage, pass, micro-batch
//   1F0,1B0,1F1,1B1,1F2,1B2
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepc {

struct StagePass {
  int64_t stage = 0;
  bool is_backward = false;
  int64_t micro_batch = 0;
  auto operator<=>(const StagePass&) const = default;
};

struct StageOrder {
  int64_t stages = 1, micro_batches = 1;
  std::vector<std::vector<StagePass>> passes;  // by rank along pp
  bool operator==(const StageOrder&) const = default;

  [[nodiscard]] int64_t ranks() const { return static_cast<int64_t>(passes.size()); }
};

// All forward passes, then all backward passes; `chunks`: stages of a rank.
StageOrder gpipe_order(int64_t ranks, int64_t micro_batches, int64_t chunks = 1);
// Each rank takes a backward pass as soon as it can, so that rank r holds at most ranks - r micro-batches (Narayanan et
// al., Memory-efficient pipeline-parallel DNN training, 2021). UserError for fewer micro-batches than ranks.
StageOrder one_forward_one_backward(int64_t ranks, int64_t micro_batches);
// The same with several stages a rank, of which it takes as many micro-batches as there are ranks in turn: it waits
// less, and holds and sends more (Narayanan et al., Efficient large-scale language model training on GPU clusters using
// Megatron-LM, 2021). UserError unless micro-batches are a multiple of the ranks.
StageOrder interleaved_order(int64_t ranks, int64_t micro_batches, int64_t chunks);

// "gpipe", "1f1b" (interleaved where there are chunks), or a file in the form above. UserError for what is none, and
// for a file that verify() refuses.
StageOrder stage_order(const std::string& name, int64_t ranks, int64_t micro_batches, int64_t chunks = 1);

// UserError naming what is missing, given twice or on another rank than its stage's; whether ranks then wait for each
// other for ever is found by make_program().
void verify(const StageOrder& order);

std::string to_csv(const StageOrder& order);
StageOrder parse_stage_order(std::string_view csv);

// Of stage `s`, at most so many micro-batches are between their forward and their backward pass.
int64_t live_micro_batches(const StageOrder& order, int64_t stage);

}  // namespace stepc
