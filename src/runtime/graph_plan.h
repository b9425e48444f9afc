// GraphPlan: everything about a Graph that is decided before it runs: which kernel runs each unit, and where every
// tensor lies. Plain data but for the kernels; GraphExecutable runs it.
//
//   arena    at a fixed offset of the arena, as memory/ has planned it
//   input    in the program's memory: an update that is written right where it belongs
//   own      outlives the step, so it gets memory of its own in every run
//   view     a window on another tensor
//   nowhere  never outside of a kernel
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "memory/graph_memory.h"
#include "memory/order/plan_order.h"
#include "runtime/kernel_call.h"
#include "runtime/kernel_sources.h"
#include "runtime/opaque_call.h"
#include "runtime/products_call.h"

namespace stepc {

// One instruction: a node, or a group of nodes.
struct Unit {
  std::vector<NodeId> nodes;
  std::vector<TensorId> inputs, outputs;  // what is read from and written to memory
  std::optional<KernelCall> kernel;       // a group as one generated kernel
  std::optional<ProductsCall> products;   // a group of products as one blocked call
  std::optional<OpaqueCall> opaque;       // an ATen call without a row in the op table
  // None of these: node by node.
  uint64_t scratch_offset = 0;
  uint64_t scratch_bytes = 0;
};

struct Place {
  enum class Kind : uint8_t { kNowhere, kArena, kInput, kOwn, kView };
  Kind kind = Kind::kNowhere;
  uint64_t offset = 0;  // kArena: in bytes
  uint32_t input = 0;   // kInput: which
  Shape strides;        // kArena, kOwn: in elements
};

struct GraphPlan {
  Graph graph;
  std::vector<Unit> units;    // in the order in which they run
  std::vector<Place> places;  // by tensor
  GraphMemory memory;
  PlannedOrder order;  // program order, its peak and its layout; for memory_report()
  uint64_t arena_bytes = 0;
  uint64_t own_bytes = 0;  // of what outlives the step
  blocked::MicroKernels micro_kernels;
  std::vector<std::string> fallbacks;  // groups that run as ATen calls, and why

  // Beside the program's own memory.
  [[nodiscard]] uint64_t peak_bytes() const { return arena_bytes + own_bytes; }
  // With it: what a memory budget counts.
  [[nodiscard]] uint64_t needed_bytes() const { return bytes_of_inputs(graph) + peak_bytes(); }
  [[nodiscard]] size_t kernels() const;  // units with generated ones
};

// `graph` is fused. `threads` run its kernels: their scratch memory depends on it.
GraphPlan plan_graph(Graph graph, KernelSources& kernels, int threads);

// Lays the arena out anew for other scratch sizes, by unit: what a run has found out beside what was known.
void grow_scratch(GraphPlan& plan, const std::vector<uint64_t>& bytes);

}  // namespace stepc
