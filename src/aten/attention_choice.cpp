#include "aten/attention_choice.h"

#include <array>
#include <cmath>
#include <optional>

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>

namespace stepc {

namespace {

using at::SDPBackend;
using at::Tensor;

int g_sm = 0;

struct Attention {
  const Tensor &q, &k, &v;
  const std::optional<Tensor>& mask;
  double dropout;
  bool is_causal;
  bool is_grouped;

  [[nodiscard]] bool is_half() const { return q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16; }
  [[nodiscard]] bool has_mask() const { return mask.has_value() && mask->defined(); }
  [[nodiscard]] bool has_gradients() const {
    return at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  }
};

// What every fused kernel asks for.
bool is_dense(const Attention& a) {
  for (const Tensor* one : {&a.q, &a.k, &a.v})
    if (one->dim() != 4 || one->size(0) != a.q.size(0) || one->size(2) == 0 || one->stride(3) != 1 ||
        one->scalar_type() != a.q.scalar_type())
      return false;
  const int64_t heads = a.q.size(1);
  const bool is_shared = a.is_grouped && a.k.size(1) != 0 && heads % a.k.size(1) == 0 && heads % a.v.size(1) == 0;
  return is_shared || (a.k.size(1) == heads && a.v.size(1) == heads);
}

// cuDNN's masks have no gradient.
bool has_plain_mask(const Attention& a) {
  if (!a.has_mask()) return true;
  const Tensor& mask = *a.mask;
  if (mask.requires_grad() || (mask.dim() != 2 && mask.dim() != 4)) return false;
  const std::array<int64_t, 4> scores = {a.q.size(0), a.q.size(1), a.q.size(2), a.k.size(2)};
  for (int64_t d = 1; d <= mask.dim(); ++d)
    if (mask.size(-d) != 1 && mask.size(-d) != scores[scores.size() - static_cast<size_t>(d)]) return false;
  return true;
}

bool fits_cudnn(const Attention& a) {
  constexpr int64_t kLargestHead = 128, kMultiple = 8, kMost = 65535;
  constexpr double kDropoutSteps = 16;
  const auto fits = [&](int64_t head) { return head <= kLargestHead && head % kMultiple == 0; };
  const at::Context& context = at::globalContext();
  return context.userEnabledCuDNNSDP() && a.is_half() && has_plain_mask(a) && fits(a.q.size(3)) && fits(a.v.size(3)) &&
         !(context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly()) &&
         a.dropout * kDropoutSteps == std::floor(a.dropout * kDropoutSteps) && a.k.size(2) != 1 &&
         (a.dropout == 0 || a.q.size(2) != 1) && a.q.size(0) <= kMost && a.q.size(1) <= kMost;
}

bool fits_flash(const Attention& a) {
  constexpr int64_t kLargestHead = 256, kLargestTrained = 192;
  const int64_t head = a.q.size(3);
  // Consumer cards have too little shared memory for the backward pass of large heads.
  const bool is_small_card = (g_sm > 80 && g_sm < 90) || g_sm >= 120;
  return at::globalContext().userEnabledFlashSDP() && a.is_half() && !a.has_mask() && head == a.k.size(3) &&
         head == a.v.size(3) && head <= kLargestHead &&
         !(is_small_card && a.has_gradients() && head > kLargestTrained) &&
         !(a.is_causal && a.q.size(2) != a.k.size(2));
}

bool fits_efficient(const Attention& a) {
  const bool is_float = a.q.scalar_type() == at::kFloat;
  const int64_t multiple = is_float ? 4 : 8;  // 16 bytes
  const auto is_aligned = [&](const Tensor& one) {
    return one.size(3) % multiple == 0 && one.storage_offset() % multiple == 0;
  };
  return at::globalContext().userEnabledMemEfficientSDP() && (a.is_half() || is_float) && a.q.size(3) == a.k.size(3) &&
         is_aligned(a.q) && is_aligned(a.k) && is_aligned(a.v);
}

int64_t choose(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
               bool is_causal, std::optional<double> /*scale*/, bool is_grouped) {
  const Attention attention{q, k, v, mask, dropout, is_causal, is_grouped};
  if (is_dense(attention))
    for (const SDPBackend backend : at::globalContext().sDPPriorityOrder()) {
      if (backend == SDPBackend::cudnn_attention   ? fits_cudnn(attention)
          : backend == SDPBackend::flash_attention ? fits_flash(attention)
          : backend == SDPBackend::efficient_attention
              ? fits_efficient(attention)
              : backend == SDPBackend::math && at::globalContext().userEnabledMathSDP())
        return static_cast<int64_t>(backend);
    }
  return static_cast<int64_t>(at::globalContext().userEnabledMathSDP() ? SDPBackend::math : SDPBackend::error);
}

}  // namespace

void choose_attention_for(int sm) {
  g_sm = sm;
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
  if (sm / 10 != 9 && sm / 10 != 10) return;
  std::vector<int64_t> order;
  for (const SDPBackend backend :
       {SDPBackend::cudnn_attention, SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math})
    order.push_back(static_cast<int64_t>(backend));
  at::globalContext().setSDPPriorityOrder(order);
}

}  // namespace stepc
