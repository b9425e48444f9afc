// fuse_losses: linear + cross-entropy as one op. Finds logits = hidden weight', their log_softmax and nll_loss with
// what becomes of them backwards, and puts linear_cross_entropy in their place, so that the logits never exist. What
// multiplies the gradients then comes before the loss; where that depends on the loss itself, and where anything else
// reads the logits, nothing changes.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph fuse_losses(Graph graph);

}  // namespace stepc
