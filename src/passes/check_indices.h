// check_indices: finds the tensors of the program that select elements, and their ranges. Where PyTorch reports an
// index out of range, a kernel reads the nearest element. So a guard checks such indices before anything is updated,
// and a step that it rejects runs its recorded calls, which raise the error.
//
//   %2: f32[2, 8] = take(%weight, %ids) {dim=0}     guard all(0 <= %ids and %ids < 10)
#pragma once

#include "ir/graph.h"

namespace stepc {

// Checks indices that views, casts and arithmetic on single elements make from inputs. Indices that the step computes
// in another way (a sort, an argmax), or that depend on numbers of the host, are not checked.
Graph check_indices(Graph graph);

}  // namespace stepc
