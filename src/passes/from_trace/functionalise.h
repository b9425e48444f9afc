// functionalise: Trace -> Graph. In-place calls, views, aliases and detached uses become pure SSA: every storage is
// followed as the tensor that it holds, a window on it is had by view ops, and what the step changed in the program's
// memory comes out as updates of inputs. Calls without a row in the ATen map that fits them become opaque nodes.
//
//   call 0 = aten::mul_.Scalar(%0, 2.0) writes %0     %1: f32[4] = mul(%0, 2.0), and at the end: update %0 = %1
//
// The program's host code between the calls becomes nodes of their own (HostCode in graph.h): what the step has changed
// by then is in the program's memory, and what host code changes is read anew.
//
// Pre: verify(trace). Post: verify_ops(graph). Throws UserError where a Graph cannot say what the host decides.
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
