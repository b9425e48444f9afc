#include "plan/step_state.h"

namespace stepc {

namespace {
bool is_state(InputKind kind) {
  switch (kind) {
    case InputKind::kParameter:
    case InputKind::kGradient:
    case InputKind::kOptimizerState:
    case InputKind::kBuffer:
    case InputKind::kCaptured:
      return true;
    default:
      return false;
  }
}
}  // namespace

StepState state_of(const Graph& graph) {
  StepState state;
  for (const GraphInput& input : graph.inputs)
    if (is_state(input.kind))
      state.try_emplace({input.kind, input.key}, static_cast<uint64_t>(bytes_of(graph.type(input.tensor))));
  return state;
}

uint64_t bytes_of(const StepState& state) {
  uint64_t bytes = 0;
  for (const auto& [key, of_one] : state) bytes += of_one;
  return bytes;
}

}  // namespace stepc
