#include "plan/stages/price_pipeline.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "plan/stages/simulate_program.h"

namespace stepc {

namespace {
using Kind = StagePass::Kind;
constexpr uint32_t kKinds = 4;  // of passes: functions of a stage

uint32_t function_of(int64_t stage, Kind kind) {
  return static_cast<uint32_t>(stage) * kKinds + static_cast<uint32_t>(kind);
}

// Each pass as calls: it receives what it needs of another pass, runs, and sends what it makes, on one rank too.
StageProgram program_of(const StageOrder& order) {
  StageProgram program;
  for (int64_t s = 0; s < order.stages; ++s)
    for (const char* pass : {"forward", "backward", "inputs", "weights"})
      program.functions.push_back({str("{} {}", pass, s), order.rank_of(s), {}, {}});
  for (const std::vector<StagePass>& row : order.passes) {
    std::vector<StageCall>& calls = program.calls.emplace_back();
    for (const StagePass& pass : row) {
      const bool is_forward = pass.kind == Kind::kForward, is_last = pass.stage + 1 == order.stages;
      const auto add_message = [&](StageCall::Kind kind, int64_t maker, bool is_of_forward, int64_t peer_stage) {
        StageCall& call =
            calls.emplace_back(StageCall{kind, function_of(maker, is_of_forward ? Kind::kForward : Kind::kBackward),
                                         pass.micro_batch, order.rank_of(peer_stage)});
        call.message =
            static_cast<uint32_t>((2 * maker + (is_of_forward ? 0 : 1)) * order.micro_batches + pass.micro_batch);
      };
      const auto receive = [&](int64_t maker, bool is_of_forward) {
        add_message(StageCall::Kind::kReceive, maker, is_of_forward, maker);
      };
      const auto send = [&](int64_t stage) { add_message(StageCall::Kind::kSend, pass.stage, is_forward, stage); };
      if (is_forward && pass.stage > 0) receive(pass.stage - 1, true);
      if (pass.kind == Kind::kBackward || pass.kind == Kind::kInputs) receive(pass.stage + (is_last ? 0 : 1), is_last);
      calls.push_back({StageCall::Kind::kRun, function_of(pass.stage, pass.kind), pass.micro_batch});
      if (is_forward) send(pass.stage + (is_last ? 0 : 1));
      if ((pass.kind == Kind::kBackward || pass.kind == Kind::kInputs) && pass.stage > 0) send(pass.stage - 1);
    }
  }
  return program;
}

void count_bytes(const std::vector<StageCost>& stages, const std::vector<StagePass>& passes, PipelinePrice& price) {
  std::vector<bool> is_here(stages.size());
  uint64_t state = 0, held = 0, most = 0;
  int64_t live = 0, most_live = 0;
  for (const StagePass& pass : passes) {
    const auto stage = static_cast<size_t>(pass.stage);
    if (!is_here[stage]) state += stages[stage].state_bytes;
    is_here[stage] = true;
    if (pass.kind == Kind::kForward) held += stages[stage].held_bytes, ++live;
    most = std::max(most, held + stages[stage].working_bytes);
    most_live = std::max(most_live, live);
    if (pass.ends()) held -= stages[stage].held_bytes, --live;
  }
  price.bytes.push_back(state + most);
  price.live_most.push_back(most_live);
}

}  // namespace

PipelinePrice price_pipeline(const std::vector<StageCost>& stages, const StageOrder& order) {
  INTERNAL_CHECK_EQ(std::ssize(stages), order.stages, "stages of the order");
  const StageProgram program = program_of(order);
  std::vector<double> seconds;  // by function, as StagePass::Kind
  for (const StageCost& one : stages)
    seconds.insert(seconds.end(), {one.forward_seconds, one.input_seconds + one.weight_seconds, one.input_seconds,
                                   one.weight_seconds});
  const ProgramTimeline timeline = simulate(program, seconds, [&](const StageCall& send) {
    if (program.functions[send.function].rank == send.peer) return 0.0;
    const bool is_onward = send.function % kKinds == static_cast<uint32_t>(Kind::kForward);
    return stages.at(send.function / kKinds - (is_onward ? 0 : 1)).send_seconds;
  });
  PipelinePrice price{timeline.seconds, timeline.idle_share(), timeline.busy};
  for (const std::vector<StagePass>& passes : order.passes) count_bytes(stages, passes, price);
  return price;
}

}  // namespace stepc
