// fold_constants: a tensor made only from single values (full, and arithmetic and views on it) becomes a single value.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph fold_constants(Graph graph);

}  // namespace stepc
