#include "engine/ranks/rank_program.h"

#include <utility>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/ranks/consensus.h"
#include "engine/ranks/verify_rank.h"
#include "ir/alignment.h"

namespace stepc {

namespace {

// All ranks must have the same Schedule text, because their collectives meet in its order.
void check_one_plan(const Schedule& schedule, const Verify& verify, Ranks& ranks) {
  if (const auto other = find_unlike(ranks, hash_of(schedule)))
    user_error(
        "rank {} planned another step ({}) than rank 0 ({}): all ranks want the same stepc, configuration and kind of "
        "CPU",
        other->rank, other->its, other->first);
  if (const auto other = find_unlike(ranks, to_text(verify)))
    user_error("rank {} has verify \"{}\", and rank 0 \"{}\": all ranks compare their plans together", other->rank,
               other->its, other->first);
}

}  // namespace

RankProgram::RankProgram(VirtualPlan captured, KernelSources& kernels, const CompileOptions& options,
                         const Verify& verify, const std::shared_ptr<Ranks>& ranks, ShardedState& state)
    : trace_(std::move(captured.trace)),
      kernels_(kernels),
      options_(options),
      verify_(verify),
      ranks_(ranks),
      state_(state) {
  USER_CHECK(captured.obstacle.empty(), "this step cannot run on several ranks, because it cannot be planned: {}",
             captured.obstacle);
  compile();
}

RankProgram::RankProgram(KernelSources& kernels, const CompileOptions& options, const Verify& verify,
                         const std::shared_ptr<Ranks>& ranks, ShardedState& state)
    : kernels_(kernels), options_(options), verify_(verify), ranks_(ranks), state_(state) {
  INTERNAL_CHECK(options.function != nullptr, "a program of no function");
  compile();
}

void RankProgram::compile() {
  compiled_ = compile_fast(trace_, kernels_, options_, ranks_);
  check_one_plan(schedule(), verify_, *ranks_);
  state_.add(schedule());
}

StepResult RankProgram::step(const std::vector<at::Tensor>& batch, RunTimes* times, OnWritten on_written,
                             const PartOfStep& part) {
  if (must_verify(part.place)) verify(batch, part);
  StepResult result = begin(batch, times, std::move(on_written), part);
  INTERNAL_CHECK(result.is_whole(), "a rank's step pauses, and nobody asked it to");
  return result;
}

StepResult RankProgram::begin(const std::vector<at::Tensor>& batch, RunTimes* times, OnWritten on_written,
                              const PartOfStep& part) {
  RunInputs inputs = inputs_of(*compiled_.executor, batch, part);
  inputs.times = times;
  inputs.on_written = std::move(on_written);
  before_run_ = read_generator(generator());
  place_ = part.place;
  return came_to(compiled_.executor->run(std::move(inputs)));
}

// Where the device's graphs find it at every run.
at::Tensor RankProgram::at_its_place(size_t tensor, const at::Tensor& now) {
  at::Tensor& place = places_[tensor];
  if (!place.defined() || place.sizes() != now.sizes() || place.scalar_type() != now.scalar_type())
    place = at::empty(now.sizes(), now.options());
  return place.copy_(now.detach(), /*non_blocking=*/true);
}

RunInputs RankProgram::inputs_of(Executor& executor, const std::vector<at::Tensor>& batch, const PartOfStep& part) {
  RunInputs inputs;
  inputs.step = part.step;
  inputs.results = part.results;
  inputs.on_event = [](size_t, const std::vector<at::Tensor>&) { return std::string(); };  // its numbers are there
  inputs.tells_autograd = false;
  for (const ScheduleInput& input : executor.schedule().inputs) {
    at::Tensor& tensor = inputs.tensors.emplace_back();
    if (!is_of_program(input.kind)) continue;
    if (input.kind != InputKind::kBatch) {
      tensor = state_.part(*owner_of(input.kind), input.key);
      continue;
    }
    const size_t number = std::stoul(input.key);
    tensor = batch.at(number);
    if (input.part && tensor.sizes() == c10::IntArrayRef(input.part->shape))
      tensor = part_of(tensor, input.part->sharding, state_.mesh(), ranks_->rank());
    if (!tensor.is_cpu() && options_.function != nullptr && options_.device_graphs &&
        number < options_.moving_tensors) {
      tensor = at_its_place(number, tensor);
      continue;
    }
    tensor = tensor.contiguous();
    // Rows of a larger batch begin anywhere, and kernels of a device want more.
    if (!tensor.is_cpu() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment != 0)
      tensor = tensor.clone();
  }
  if (const std::string why = executor.why_not(inputs.tensors); !why.empty())
    throw InternalError(str("a rank's tensors are not those of its step: {}", why));
  return inputs;
}

StepResult RankProgram::came_to(StepResult result) {
  if (result.paused) return result;
  const Executor& ran = *compiled_.executor;
  if (ran.has_tried_graphs() && ranks_->largest(ran.has_recorded_graphs() ? 1 : 0) != 0)
    verified_graphs_[place_] = false;
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

void RankProgram::abandon() {
  if (!compiled_.executor->is_paused()) return;
  compiled_.executor->abandon();
  write_generator(generator(), *before_run_);
}

void RankProgram::supply(CallId call, size_t arg, const c10::IValue& number) {
  supplied_[{call, arg}] = number;
  compiled_.executor->supply(call, arg, number);
}

// ---- verification

bool RankProgram::must_verify(uint32_t place) const {
  if (verify_.kind == Verify::Kind::kOff || is_plain_) return false;
  const auto graphs = verified_graphs_.find(place);
  return !is_verified_ || (graphs != verified_graphs_.end() && !graphs->second) ||
         (verify_.kind == Verify::Kind::kEvery && replays_ % static_cast<uint64_t>(verify_.interval) == 0);
}

void RankProgram::verify(const std::vector<at::Tensor>& batch, const PartOfStep& part) {
  const auto begin = Clock::now();
  const RankProof proof{compiled_,
                        trace_,
                        kernels_,
                        options_,
                        ranks_,
                        [&](Executor& executor) { return inputs_of(executor, batch, part); },
                        [&](Executor& executor) {
                          for (const auto& [place, number] : supplied_)
                            executor.supply(place.first, place.second, number);
                        }};
  const RankVerdict verdict = verify_rank(proof, plain_);
  verified_.seconds += seconds_since(begin);
  verified_.with = verdict.with;
  is_verified_ = verdict.is_decided;
  if (const auto graphs = verified_graphs_.find(part.place); graphs != verified_graphs_.end())
    graphs->second = verdict.is_decided;
  if (verdict.compared && verdict.is_decided) ++verified_.count;
  if (!verdict.difference.empty()) {
    USER_CHECK(!verdict.is_transient,
               "a replay differs from the plain graph in {}, and the same replay a moment later does not: a machine of "
               "this run computes wrong results at times",
               verdict.difference);
    USER_CHECK(plain_.executor != nullptr,
               "a replay differs from the plain graph in {}, and there is no other way to run this step on ranks",
               verdict.difference);
    verified_.warning = str("a replay differs from the plain graph in {}: all ranks run the plain graph from now on",
                            verdict.difference);
    if (ranks_->rank() == 0) log().warn(verified_.warning);
    compiled_.executor = std::move(plain_.executor);
    compiled_.plan = std::move(plain_.plan);
    is_plain_ = true;
  }
  if (verify_.kind != Verify::Kind::kEvery || is_plain_) plain_ = {};
  release_free_memory();
}

void count_verified(Stats& stats, const RankProgram::Verified& now, const RankProgram::Verified& before) {
  stats.verifications += now.count - before.count;
  stats.plain_verifications += now.count - before.count;
  stats.verify_seconds += now.seconds - before.seconds;
  if (!now.with.empty()) stats.verified_with = now.with;
  if (now.warning != before.warning) stats.warnings.push_back(now.warning);
}

}  // namespace stepc
