#include "plan/unordered_sums.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "plan/aten_kind.h"

namespace stepc {

namespace {

// docs.pytorch.org, torch.use_deterministic_algorithms(): what throws under it on CUDA, and what takes another kernel;
// attention's backward passes besides, which say so where they are called. Of convolutions cuDNN may take either kind.
constexpr std::array kOps = std::to_array<std::string_view>({
    "aten::_adaptive_avg_pool2d_backward",
    "aten::_adaptive_avg_pool3d_backward",
    "aten::_ctc_loss_backward",
    "aten::_efficient_attention_backward",
    "aten::_embedding_bag_dense_backward",
    "aten::_flash_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::avg_pool3d_backward",
    "aten::bincount",
    "aten::convolution_backward",
    "aten::cumsum",
    "aten::cumsum_",
    "aten::fractional_max_pool2d_backward",
    "aten::fractional_max_pool3d_backward",
    "aten::grid_sampler_2d_backward",
    "aten::grid_sampler_3d_backward",
    "aten::histc",
    "aten::index_add",
    "aten::index_add_",
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::nll_loss2d_forward",
    "aten::put_",
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
    "aten::scatter_add",
    "aten::scatter_add_",
    "aten::scatter_reduce",
    "aten::scatter_reduce_",
    "aten::upsample_bicubic2d_backward",
    "aten::upsample_bilinear2d_backward",
    "aten::upsample_linear1d_backward",
    "aten::upsample_trilinear3d_backward",
});

}  // namespace

std::string adds_in_any_order(const Trace& trace, bool deterministic) {
  if (deterministic || trace.device.empty()) return {};
  for (const Call& call : trace.calls)
    if (std::ranges::find(kOps, base_name(call.op)) != kOps.end()) return std::string(base_name(call.op));
  return {};
}

}  // namespace stepc
