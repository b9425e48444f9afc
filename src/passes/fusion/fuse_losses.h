// fuse_losses: linear + cross-entropy as one op. Finds logits = hidden weight', their log_softmax and nll_loss with
// their backward nodes, and replaces them by linear_cross_entropy, so that the logits never exist. The factor of the
// gradients is then computed before the loss. Changes nothing if that factor depends on the loss, or if anything else
// reads the logits.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph fuse_losses(Graph graph);

}  // namespace stepc
