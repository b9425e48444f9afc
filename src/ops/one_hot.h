// A sum over the one element that an index names among zeros, as the gradient of a cross-entropy's classes is summed:
// without the tensor of all of them.
#pragma once

#include <optional>
#include <vector>

#include "ops/graph_builder.h"

namespace stepc {

// What `node` on `inputs` gives, where it is the sum along one dimension of where(place == index, value, 0), perhaps
// with a further condition, index and value being the same along it: the value, or 0 for an index that names no place.
// nullopt: it is no such sum.
std::optional<TensorId> sum_of_one_hot(GraphBuilder& b, const Node& node, const std::vector<TensorId>& inputs);

}  // namespace stepc
