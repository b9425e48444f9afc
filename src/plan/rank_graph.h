// From a captured step to what one rank of a mesh does of it, before the step is cut into functions (passes/stages).
#pragma once

#include <optional>

#include "cost/features.h"
#include "ir/graph.h"
#include "passes/fp8.h"
#include "passes/partition/strategy.h"
#include "passes/pass.h"

namespace stepc {

// What the passes must know of the machine before they decide about memory.
void set_machine(PassSettings& settings, const Features& features);

// One rank's step of the strategy's mesh as core ops, before memory is decided. `captured`: the result of
// functionalise(). `features`: of the machine for which the functions will be planned; they say what documents of
// packed rows and float8 become.
Graph rank_graph(const Graph& captured, const Strategy& strategy, const Features& features,
                 const std::optional<Fp8Recipe>& fp8 = {});

}  // namespace stepc
