// functionalise: Trace -> Graph. In-place calls, views, aliases and detached uses become pure SSA: every storage is
// followed as the tensor that it holds, view ops give the windows on it, and what the step changed in the program's
// memory becomes updates of inputs. Calls without a fitting row in the ATen map become opaque nodes.
//
//   call 0 = aten::mul_.Scalar(%0, 2.0) writes %0     %1: f32[4] = mul(%0, 2.0), and at the end: update %0 = %1
//
// The program's host code between the calls becomes nodes of its own (HostCode in graph.h): what the step has changed
// before is in the program's memory, and what host code changes is read again.
//
// Pre: verify(trace). Post: verify_ops(graph). Throws UserError if a Graph cannot express a decision of the host.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph functionalise(const Trace& trace);

// The same, with the call from which each node was made; invalid: inputs and outputs of the step.
struct CallGraph {
  Graph graph;
  std::vector<CallId> calls;
};
CallGraph functionalise_calls(const Trace& trace);

}  // namespace stepc
