#include "engine/record/rehearsal.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/Functions.h>

#include "base/text.h"
#include "engine/record/recorded_step.h"
#include "engine/verify/remains.h"

namespace stepc {

namespace {

std::vector<at::Generator> generators_of(const Program& program) {
  std::vector<at::Generator> generators;
  for (const auto& [name, generator] : program.all_generators()) generators.push_back(generator);
  return generators;
}

bool writes_to_batch(const Trace& trace) {
  std::set<StorageId> batch;
  for (const External& external : trace.externals)
    if (external.owner == Owner::kBatch) batch.insert(trace.values[external.value.index()].storage);
  return std::ranges::any_of(trace.calls, [&](const Call& call) {
    return std::ranges::any_of(call.writes,
                               [&](ValueId value) { return batch.contains(trace.values[value.index()].storage); });
  });
}

std::string problem_of(const Program& program, const Recording& recording) {
  if (!recording.effects.empty()) return recording.effects.front();
  if (std::string reason = program.python_reason(); !reason.empty()) return reason;
  if (!recording.unowned.empty()) return recording.unowned.front().obstacle;
  if (!recording.obstacles.empty()) return recording.obstacles.front();
  return writes_to_batch(recording.trace) ? "it writes to its batch" : "";
}

}  // namespace

SavedSlots::SavedSlots(Program& program, const StepInput& input)
    : program_(program),
      keys_(program.keys()),
      tensors_(list_tensors(program, input)),
      gradients_(keys_, tensors_),
      everything_(program.save_everything()) {
  memory_.reserve(tensors_.size());
  for (const at::Tensor& tensor : tensors_) memory_.push_back(tensor.defined() ? tensor.variable_data() : at::Tensor());
}

void SavedSlots::restore(const std::shared_ptr<void>& host_state) const {
  for (size_t t = 0; t < tensors_.size(); ++t)
    if (tensors_[t].defined() && !tensors_[t].is_alias_of(memory_[t])) at::Tensor(tensors_[t]).set_data(memory_[t]);
  if (host_state != nullptr)
    program_.restore_host_state(host_state);
  else
    program_.restore_everything(everything_);
  program_.refresh();
  std::vector<at::Tensor> now;
  program_.append_tensors(now);
  // A slot that is gone was not part of the program's structure; the code that removed it restores it.
  const std::vector<OwnedKey>& keys = program_.keys();
  for (size_t k = 0; k < keys_.size(); ++k) {
    if (!program_.can_rebind(keys_[k].owner) || keys_[k].owner == Owner::kGradient) continue;
    const auto found = std::find(keys.begin(), keys.end(), keys_[k]);
    if (found != keys.end() && !now[static_cast<size_t>(found - keys.begin())].is_same(tensors_[k]))
      program_.rebind(keys_[k].owner, keys_[k].key, tensors_[k]);
  }
  gradients_.restore();
}

SavedState::SavedState(Program& program, const StepInput& input)
    : slots_(program, input), undo_(nullptr, slots_.tensors(), generators_of(program)) {}

void SavedState::restore() {
  slots_.restore();
  undo_.restore();
}

Rehearsal rehearse(Program& program, const StepInput& input, const OpRules& rules,
                   const std::function<StepOutput()>& step) {
  program.refresh();
  SavedState before(program, input);
  Rehearsal rehearsal;
  run_and_restore(before, [&] {
    RecordedStep recorded(program, input, rules);
    const Recording recording = record(recorded, [&] {
      StepOutput output = step();
      own_results(output, list_tensors(program, input));
      return output;
    });
    rehearsal.problem = problem_of(program, recording);
    for (const Value& value : recording.trace.values)
      if (is_floating(value.dtype) && size_of(value.dtype) < size_of(rehearsal.narrowest))
        rehearsal.narrowest = value.dtype;
    for (const at::Tensor& tensor : recording.output.tensors)
      rehearsal.left.push_back(named("what it returns", str("returned {}", rehearsal.left.size()), tensor, false));
    for (const Arg& number : recording.output.numbers)
      rehearsal.left.push_back(
          named("what it returns", str("returned {}", rehearsal.left.size()), tensor_of(number), false));
    program.refresh();
    rehearsal.keys = program.keys();
    std::vector<at::Tensor> tensors;
    program.append_tensors(tensors);
    for (size_t k = 0; k < tensors.size(); ++k) {
      const at::Tensor copy = tensors[k].defined() ? tensors[k].detach().clone() : at::Tensor();
      rehearsal.left.push_back(named_owned(rehearsal.keys[k], copy, false));
    }
  });
  return rehearsal;
}

std::string difference_of(const Rehearsal& one, const Rehearsal& other) {
  if (one.keys != other.keys || one.left.size() != other.left.size()) return "what it makes";
  return difference_in_values(
      one.left, other.left,
      std::ranges::min(one.narrowest, other.narrowest, {}, [](DType dtype) { return size_of(dtype); }));
}

}  // namespace stepc
