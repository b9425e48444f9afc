// GraphMemory: which tensors of a Graph need memory of their own, as an OrderProblem that any order of its nodes can be
// held against. The rules:
//
//   inputs     lie in the program's memory, for the whole step, and cost nothing here
//   views      share their operand's memory: whoever reads them reads through. They belong to no unit
//   groups     are one unit (a fused kernel): tensors that only the group reads need no memory, and a view that is read
//              outside of its group is a result like any other
//   updates    are written straight into the input that they replace, so they wait for its other readers, and for
//              guards. So are the intermediate results of which they are made one after the other in place. An update
//              that cannot wait (the program reads the old contents after it) has memory of its own, to the step's end
//   host code  what host code must find in the program's memory is such an update, in its place. The host code runs
//              after the other readers of what it changes, and updates at the step's end wait for it
//   draws      opaque calls that take random numbers, and host code, keep their order
//   in place   pointwise work, and what replaces some elements of an operand, may take over the memory of what it reads
//              last
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ir/graph.h"
#include "memory/order/order_problem.h"

namespace stepc {

// Facts about the kernels that will run the Graph. Without a fact, what holds for any good kernel is assumed.
struct KernelFacts {
  // Scratch memory of a node's kernel; none: no node has any.
  std::function<uint64_t(NodeId node)> workspace_bytes = {};
  // Whether the kernel of the unit that begins with `node` may write `result` over `operand`, a root; none: it may if
  // the elements of both move together.
  std::function<bool(NodeId node, TensorId operand, TensorId result)> may_share = {};
  // Whether the kernel of the unit that begins with `node` leaves `result` in memory that it allocates, so that the
  // result cannot be made in the program's memory; none: no kernel does.
  std::function<bool(NodeId node, TensorId result)> brings_memory = {};
  // Whether `result` has the strides of input number `input`; none: it has them for contiguous and channels-last
  // inputs, because kernels that read such inputs write the same layout.
  std::function<bool(TensorId result, uint32_t input)> lies_as = {};
  // By node: a view that must be copied (a reshape of strided memory); empty: none.
  std::vector<bool> copied_views = {};
};

struct GraphMemory {
  OrderProblem problem;
  std::vector<std::vector<NodeId>> nodes_of;  // by unit, in program order
  std::vector<TensorId> tensor_of;            // by value: the tensor that names the memory
  std::vector<uint32_t> input_of;  // by value: the graph input whose memory holds it; kNone: it has memory of its own
  std::vector<uint32_t> value_of;  // by tensor: whose memory holds it; kNone: an input's, or only inside a kernel
};

// Throws UserError if something is read after host code has changed it.
GraphMemory graph_memory(const Graph& graph, const KernelFacts& kernels = {});

// The bytes of the inputs of a kind in the program's memory.
uint64_t bytes_of_inputs(const Graph& graph, InputKind kind);
uint64_t bytes_of_inputs(const Graph& graph);  // of all kinds

// All nodes in the units' order, each view outside of groups before the first node that needs it.
std::vector<NodeId> node_order(const Graph& graph, const GraphMemory& memory, const UnitOrder& order);

}  // namespace stepc
