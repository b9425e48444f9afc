// Which of its kernels PyTorch takes for scaled_dot_product_attention on a GPU, without one: what
// ATen/native/transformers/cuda/sdp_utils.cpp asks of operands and settings, for dense operands and sm_80 or later.
#pragma once

namespace stepc {

// Takes the place of PyTorch's own choice, which asks the driver, for a card of compute capability `sm`, 90.
void choose_attention_for(int sm);

}  // namespace stepc
