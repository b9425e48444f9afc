#include "train/step/kept_state.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "train/step/local_learner.h"
#include "train/step/rank_learner.h"

namespace stepc::train {

uint64_t KeptState::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, part] : parts) bytes += part.nbytes();
  return bytes;
}

std::string RankLearner::plan_hash() const {
  std::string hashes = to_text(mesh_);
  for (const RankProgram* program : step_programs()) hashes += str(" {}", hash_of(program->schedule()));
  return hashes;
}

// Updates run at a step's end, or earlier if that saves memory. Gradients that are added up belong to this step alone.
bool RankLearner::may_have_changed() const {
  if (doing_ != Doing::kProgram) return doing_ == Doing::kUnknown;
  const std::vector<Flight::Noted> last = ranks_->flight().last(1);
  if (last.empty() || last[0].step >= 0) return false;  // it had not come to an instruction
  const Schedule& schedule = running_->schedule();
  const auto is_kept = [&](OperandId operand) {
    const Buffer& buffer = schedule.buffers[schedule.operands[operand.index()].buffer.index()];
    return buffer.kind == Buffer::Kind::kInput && schedule.inputs[buffer.input].kind != InputKind::kGradient;
  };
  for (size_t i = 0; i <= last[0].instruction && i < schedule.instructions.size(); ++i)
    if (std::ranges::any_of(schedule.instructions[i].writes, is_kept)) return true;
  return false;
}

std::optional<KeptState> RankLearner::leave() {
  if (may_have_changed()) return std::nullopt;
  KeptState kept{plan_hash(), {}, before_step_};
  if (doing_ == Doing::kNothing) kept.generator = read_generator(draws());
  for (const auto& name : state_.names())
    if (name.first != Owner::kGradient) kept.parts[name] = state_.part(name.first, name.second);
  return kept;
}

bool RankLearner::take_over(const KeptState* kept) {
  const bool has_kept = kept != nullptr && kept->plan == plan_hash();
  if (!complete_from_replicas(state_, *ranks_, has_kept ? &kept->parts : nullptr)) return false;
  const std::vector<std::string> states = ranks_->exchange(has_kept ? to_bytes(kept->generator) : std::string());
  write_generator(draws(),
                  snapshot_from_bytes(*std::ranges::find_if(states, [](const auto& of) { return !of.empty(); })));
  directory_.config.dtype = saved_dtype(directory_.config.dtype, config_.model.compute);
  doing_ = Doing::kNothing;
  return true;
}

}  // namespace stepc::train
