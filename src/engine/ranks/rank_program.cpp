#include "engine/ranks/rank_program.h"

#include <utility>

#include "base/check.h"

namespace stepc {

namespace {

// Ranks run one text: their collectives meet in its order.
void check_one_plan(const Schedule& schedule, Ranks& ranks) {
  const std::vector<std::string> hashes = ranks.exchange(hash_of(schedule));
  for (size_t r = 1; r < hashes.size(); ++r)
    USER_CHECK(hashes[r] == hashes[0],
               "rank {} planned another step ({}) than rank 0 ({}): all ranks want the same stepc, configuration and "
               "kind of CPU",
               r, hashes[r], hashes[0]);
}

}  // namespace

RankProgram::RankProgram(const VirtualPlan& captured, KernelSources& kernels, const CompileOptions& options,
                         const std::shared_ptr<Ranks>& ranks, ShardedState& state)
    : ranks_(ranks), state_(state) {
  USER_CHECK(captured.obstacle.empty(), "this step cannot run on several ranks, because it cannot be planned: {}",
             captured.obstacle);
  compiled_ = compile_fast(captured.trace, kernels, options, ranks);
  check_one_plan(schedule(), *ranks);
  state_.add(schedule());
}

std::vector<at::Tensor> RankProgram::run(const std::vector<at::Tensor>& batch, RunTimes* times, OnWritten on_written) {
  return std::move(step(batch, times, std::move(on_written)).outputs);
}

StepResult RankProgram::step(const std::vector<at::Tensor>& batch, RunTimes* times, OnWritten on_written) {
  StepResult result = begin(batch, times, std::move(on_written));
  INTERNAL_CHECK(result.is_whole(), "a rank's step pauses, and nobody asked it to");
  return result;
}

StepResult RankProgram::begin(const std::vector<at::Tensor>& batch, RunTimes* times) {
  return begin(batch, times, nullptr);
}

StepResult RankProgram::go_on() { return came_to(compiled_.executor->resume({})); }

StepResult RankProgram::begin(const std::vector<at::Tensor>& batch, RunTimes* times, OnWritten on_written) {
  RunInputs inputs;
  inputs.on_event = [](size_t, const std::vector<at::Tensor>&) { return std::string(); };  // its numbers are there
  inputs.times = times;
  inputs.on_written = std::move(on_written);
  inputs.tells_autograd = false;
  for (const ScheduleInput& input : schedule().inputs) {
    at::Tensor& tensor = inputs.tensors.emplace_back();
    if (!is_of_program(input.kind)) continue;
    if (input.kind != InputKind::kBatch) {
      tensor = state_.part(*owner_of(input.kind), input.key);
      continue;
    }
    tensor = batch.at(std::stoul(input.key));
    if (input.part && tensor.sizes() == c10::IntArrayRef(input.part->shape))
      tensor = part_of(tensor, input.part->sharding, state_.mesh(), ranks_->rank());
    tensor = tensor.contiguous();
  }
  if (const std::string why = compiled_.executor->why_not(inputs.tensors); !why.empty())
    throw InternalError(str("a rank's tensors are not those of its step: {}", why));
  return came_to(compiled_.executor->run(inputs));
}

StepResult RankProgram::came_to(StepResult result) {
  if (result.paused) return result;
  USER_CHECK(
      !result.missed_guard,
      "the step met what it was not recorded with (an index out of range, say), and on several ranks there is no "
      "other way to run it");
  INTERNAL_CHECK(result.is_whole(), "a rank's step stopped: {}", result.stopped);
  for (const Bound& rebound : result.rebindings) state_.replace(rebound.owner, rebound.key, rebound.tensor);
  measured_ = result.memory;
  ++replays_;
  return result;
}

}  // namespace stepc
