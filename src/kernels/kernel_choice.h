// The one place that decides which kernel runs a node or a group on a machine: from shapes, layouts, dtypes and the
// machine's features alone. Passes and planning ask here; nothing decides when the step runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blocked/attention.h"
#include "blocked/linear_cross_entropy.h"
#include "cost/features.h"
#include "ir/graph.h"
#include "kernels/chunked_loss.h"
#include "kernels/matmul_call.h"
#include "kernels/tensor_layout.h"
#include "loops/loop_program.h"

namespace stepc {

struct KernelChoice {
  enum class Kind : uint8_t {
    kNone,        // of a group: its nodes run one by one
    kGenerated,   // programs[0]
    kNodes,       // `nodes`, as ATen calls
    kMatmul,      // the blocked matmul, `matmul`, whose epilogues are `programs`
    kAttention,   // the blocked attention
    kLoss,        // the blocked linear layer with its cross-entropy; on a GPU `loss`, whose rows are `programs`
    kCollective,  // what the ranks of a mesh do together
    kWait,        // the end of a collective that goes on beside other kernels
    kAten,        // ATen calls
  };
  Kind kind = Kind::kAten;
  std::string why;  // "bf16 on the blocked kernel", "f32: the library's is faster on this CPU"
  std::vector<LoopProgram> programs;
  std::optional<MatmulCall> matmul;
  std::optional<ChunkedLoss> loss;
  std::optional<Graph> nodes;
  // Of the libraries' calls on a GPU: what they take beside their operands and results, where that is known without
  // running them.
  std::optional<uint64_t> workspace_bytes;
  // Of all but kAten: what the kernel works in, and behind that the copies of `copied`, each a multiple of 64 bytes.
  uint64_t scratch_bytes = 0;
  std::vector<uint32_t> copied;  // reads that are made contiguous first: the kernel does not take them as they lie
  // (read, write) pairs that may be one piece of memory.
  std::vector<std::pair<uint32_t, uint32_t>> in_place;
};

// From now on the kernel reads a contiguous copy of its operand at place `read`, which the choice's scratch memory has
// room for.
void copy_first(KernelChoice& choice, uint32_t read, const TensorLayout& operand);

// What makes loops of a group on a GPU; UserError: there are none.
using LowerGroup = std::function<LoopProgram(const Graph& group)>;
// Of a node alone, that is no view. `inputs`: how its operands lie. `lower`: for the rows of a ChunkedLoss; none: as
// for any card.
KernelChoice choose_kernel(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                           int threads, const LowerGroup& lower = nullptr);
// Of one of extract_groups(), its inputs' strides those that the kernel will see. Reads and writes are the group's
// inputs and outputs.
KernelChoice choose_kernel(const Graph& group, const Features& features, int threads);
// From now on a generated kernel's loops are those.
void use_loops(KernelChoice& choice, const Graph& group, LoopProgram program);
// Of the same, where nothing may be fused: its nodes as ATen calls, or none.
KernelChoice choose_node_calls(const Graph& group);

// The blocked calls of the attention rows and the linear cross-entropy's on operands that lie so, without data;
// nullopt: not on these operands, or not with these features. The call reads the operands at the places `copied` as
// contiguous copies.
struct BoundAttention {
  blocked::Attention call;
  bool backward = false;
  std::vector<uint32_t> copied;
};
std::optional<BoundAttention> bind_attention(std::string_view op, const Attrs& attrs,
                                             std::span<const TensorLayout> inputs);
// With its `chunk`; which gradients are wanted, its pointers say once it has data.
struct BoundLoss {
  blocked::LinearCrossEntropy call;
  bool wants_hidden = false, wants_weight = false;
  std::vector<uint32_t> copied;
};
std::optional<BoundLoss> bind_loss(const Attrs& attrs, std::span<const TensorLayout> inputs, const Features& features);

// A collective of the op table, or a wait for one. Its reads and writes are contiguous.
KernelChoice choose_collective(const Node& node, std::span<const TensorLayout> inputs, bool is_for_gpu);
// What it works in, a multiple of 64 bytes. Each rank reduces a part of what is reduced, in the order of ranks and in
// f32 where the type is narrower (the same bits on every run and every rank); what the others send of it at a time lies
// there (ir/rank_parts.h). Others need nothing: what they send and receive lies where it belongs.
uint64_t collective_scratch_bytes(std::string_view op, const TensorType& operand, int64_t ranks,
                                  bool is_for_gpu = false);

// What the kernel itself works in, a multiple of 64 bytes.
uint64_t workspace_bytes(const BoundAttention& bound, int threads);
uint64_t workspace_bytes(const BoundLoss& bound, int threads);

// A linear layer with its cross-entropy on a GPU. Without a loop that may write gradients in the place of the logits,
// ATen's calls run the node.
KernelChoice choose_chunked_loss(const Node& node, std::span<const TensorLayout> inputs, const Features& features,
                                 const LowerGroup& lower);

}  // namespace stepc
