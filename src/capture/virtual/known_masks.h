// Selections by a mask: their result is as long as the mask has ones, which is known where the mask is.
#pragma once

#include <ATen/core/stack.h>

#include "capture/virtual/known_values.h"

namespace stepc {

// The arguments of aten::index.Tensor on the stack: masks among the indices become the positions that they select.
// False if a mask is not known; indices that are no masks have a static shape already.
bool replace_known_masks(KnownValues& known, torch::jit::Stack* stack);

// The arguments of aten::masked_select on the stack become its result. False if the mask is not known.
bool select_by_known_mask(KnownValues& known, torch::jit::Stack* stack);

}  // namespace stepc
