// check_indices: what of the program's own tensors chooses elements, and of how many. Where PyTorch says which index is
// out of range, a kernel reads the nearest element; so a guard looks at such indices before anything is updated, and a
// step that it turns back runs as it was recorded, which says what is wrong.
//
//   %2: f32[2, 8] = take(%weight, %ids) {dim=0}     guard all(0 <= %ids and %ids < 10)
#pragma once

#include "ir/graph.h"

namespace stepc {

// Checks indices that views, casts and arithmetic on single elements make from inputs. Indices that the step computes
// in another way (a sort, an argmax), or that depend on numbers of the host, are not checked.
Graph check_indices(Graph graph);

}  // namespace stepc
