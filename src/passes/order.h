// order: puts nodes in the order of the lowest peak of live bytes that is found (memory/order/plan_order.h), weight
// updates where they free gradients, and sums of large tensors (squared gradient norms) right behind what makes these;
// but what guards need comes before all else. Nothing else changes.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph order(Graph graph);

}  // namespace stepc
