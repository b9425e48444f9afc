// Random numbers of a step's parts that were captured apart: those that the parts have in the whole step, which draws
// all of them from one seed. The rows of a micro-batch come first in all that it draws.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace stepc {

// Before it is partitioned. Of a micro-batch: its draws are those of its rows in one draw for the whole batch, as many
// as it has behind those of each micro-batch before. `turn`: the tensor of its batch, i64[], that says which one it is;
// a step that draws nothing does without.
Graph draw_as_rows(const Graph& micro_batch, uint32_t turn);
// Of what is done once, behind it: its draws follow the micro-batch's.
Graph draw_behind(Graph update, const Graph& micro_batch);

}  // namespace stepc
