#include "plan/gpu_allocations.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ir/alignment.h"
#include "kernels/gpu_choice.h"
#include "plan/aten_kind.h"

namespace stepc {

namespace {

// Two ticks a call: what it takes from the allocator, and its end.
int64_t begin_of(size_t call) { return 2 * static_cast<int64_t>(call); }

void allocate_tensors(Trace& trace) {
  constexpr int64_t kNever = -1;
  std::vector<std::pair<int64_t, int64_t>> uses(trace.storages.size(), {kNever, kNever});  // calls
  for (size_t c = 0; c < trace.calls.size(); ++c) {
    const auto use = [&](ValueId value) {
      auto& [first, last] = uses[trace.values[value.index()].storage.index()];
      if (first == kNever) first = static_cast<int64_t>(c);
      last = static_cast<int64_t>(c);
    };
    for_each_value(trace.calls[c].args, use);
    for_each_value(trace.calls[c].results, use);
  }
  trace.ticks = begin_of(trace.calls.size());
  for (size_t s = 0; s < uses.size(); ++s) {
    const Storage& storage = trace.storages[s];
    const auto [first, last] = uses[s];
    if (storage.external || storage.bytes == 0 || first == kNever) continue;
    Allocation one{.call = CallId(first),
                   .bytes = storage.bytes,
                   .storage = StorageId(s),
                   .kept = storage.escapes,
                   .space = storage.space};
    one.first = begin_of(static_cast<size_t>(first));
    one.last = storage.escapes ? trace.ticks : begin_of(static_cast<size_t>(last)) + 2;
    trace.allocations.push_back(one);
  }
}

uint64_t workspace_of(const Trace& trace, const Call& call, const Features& features) {
  const AtenKind kind = kind_of_call(call.op);
  if (kind == AtenKind::kMatmul) return cublas_workspace_bytes(features);
  if (kind != AtenKind::kAttentionBackward) return 0;
  constexpr size_t kOperands = 4, kRank = 4;
  std::vector<TensorLayout> operands;  // the gradient, q, k, v
  for_each_value(call.args, [&](ValueId id) {
    const Value& value = trace.values[id.index()];
    operands.push_back({{value.dtype, value.sizes}, value.strides});
  });
  const bool is_attention = operands.size() >= kOperands &&
                            std::ranges::all_of(operands.begin(), operands.begin() + kOperands,
                                                [](const TensorLayout& one) { return one.type.shape.size() == kRank; });
  return is_attention ? gpu_attention_backward_bytes(operands) : 0;
}

}  // namespace

Trace with_gpu_allocations(Trace trace, const Features& features) {
  trace.scratch.clear();
  std::erase_if(trace.allocations, [](const Allocation& one) { return !one.storage.valid(); });
  const bool is_recorded = !trace.allocations.empty();
  if (!is_recorded) allocate_tensors(trace);
  // A workspace lives while its call runs: beside what the call makes, which is alive from the same tick on.
  std::vector<Allocation> workspaces;
  for (const Allocation& one : trace.allocations) {
    if (!workspaces.empty() && workspaces.back().call == one.call) continue;
    const uint64_t bytes = workspace_of(trace, trace.calls[one.call.index()], features);
    if (bytes > 0)
      workspaces.push_back({.call = one.call,
                            .bytes = bytes,
                            .first = one.first,
                            .last = one.first + 1,
                            .storage = {},
                            .space = trace.device.empty() ? Space::kHost : Space::kDevice});
  }
  trace.allocations.insert(trace.allocations.end(), workspaces.begin(), workspaces.end());
  std::ranges::stable_sort(trace.allocations, {}, &Allocation::call);
  return trace;
}

}  // namespace stepc
