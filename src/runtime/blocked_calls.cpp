#include "runtime/blocked_calls.h"

#include "runtime/blocked_attention.h"
#include "runtime/blocked_loss.h"
#include "runtime/blocked_matmul.h"

namespace stepc {

namespace {
struct BlockedCall {
  std::string_view op;
  std::optional<std::vector<at::Tensor>> (*run)(const Node& node, const std::vector<at::Tensor>& x,
                                                const blocked::MicroKernels& kernels);
  uint64_t (*scratch_bytes)(const Node& node, const std::vector<at::Tensor>& x, const blocked::MicroKernels& kernels,
                            int threads);
};
constexpr BlockedCall kCalls[] = {
    {"attention", run_blocked_attention, blocked_attention_scratch},
    {"attention_backward", run_blocked_attention, blocked_attention_scratch},
    {"linear_cross_entropy", run_blocked_loss, blocked_loss_scratch},
    {"matmul", run_blocked_matmul, blocked_matmul_scratch},
};

const BlockedCall* find_call(const Node& node) {
  for (const BlockedCall& call : kCalls)
    if (!node.aten && call.op == node.op) return &call;
  return nullptr;
}
}  // namespace

std::optional<std::vector<at::Tensor>> run_blocked(const Node& node, const std::vector<at::Tensor>& x,
                                                   const blocked::MicroKernels& kernels) {
  const BlockedCall* call = find_call(node);
  return call == nullptr ? std::nullopt : call->run(node, x, kernels);
}

uint64_t blocked_scratch_bytes(const Node& node, const std::vector<at::Tensor>& x, const blocked::MicroKernels& kernels,
                               int threads) {
  const BlockedCall* call = find_call(node);
  return call == nullptr ? 0 : call->scratch_bytes(node, x, kernels, threads);
}

}  // namespace stepc
