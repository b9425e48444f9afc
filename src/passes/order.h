// order: puts nodes in the order of the lowest peak of live bytes that is found (memory/order/plan_order.h), with
// weight updates where they free gradients, and sums of large tensors (squared gradient norms) right after the nodes
// that make these tensors. Nodes that guards need come first. Changes nothing else.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph order(Graph graph);

}  // namespace stepc
