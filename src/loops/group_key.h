// What the loops of a group follow from, as bytes: ops, attributes, types, what reads what, and how what comes in and
// goes out lies. Groups come again in every layer of a model; who lowers them asks once for each key.
#pragma once

#include <string>

#include "ir/graph.h"

namespace stepc {

std::string group_key(const Graph& group);

}  // namespace stepc
