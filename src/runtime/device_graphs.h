// DeviceGraphs: ranges of a Schedule's instructions that its device runs at one launch, without the host between them.
// After runs in which the kernels of a range are prepared, one run records the range and then makes its calls one by
// one; later runs launch the recording whose operands have the same addresses. All other instructions run call by call:
// those that the host reads, supplies or keeps, and those that read a batch, whose address changes at every step. A
// function that a step runs several times finds its batch and leaves its results at a few places, each with its own
// recording.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "aten/device_hook.h"
#include "runtime/bind/bound_operands.h"
#include "runtime/dry_run.h"
#include "schedule/schedule.h"

namespace stepc {

// Whose steps are recorded, and what of them lies where it lay before.
struct GraphUse {
  bool is_on = false;
  // A function that a step runs several times (RunInputs::step): all of its inputs lie at a few places.
  bool is_function = false;
  // Of its results those that get memory of whoever runs it (RunInputs::results): from this one on.
  size_t lasting_from = SIZE_MAX;
};

class DeviceGraphs {
 public:
  // Both must outlive this object. `begins`: instructions before which the host may look at something, so that only the
  // first of a range may be one. `is_of_ranks`: several ranks compare what any of them has recorded, so they record in
  // the same steps, which are few; until then what lies elsewhere runs call by call.
  DeviceGraphs(const Schedule& schedule, const BoundOperands& operands, const std::set<size_t>& begins,
               const GraphUse& use, bool is_of_ranks);

  // `step`: the number of the step that the run is part of; none: each run is one.
  void begin_run(bool is_dry, const std::optional<uint64_t>& step) {
    ++runs_;
    const uint64_t now = step.value_or(runs_);
    may_record_ =
        !is_dry && now > kPlainRuns && (!is_of_ranks_ || first_step_.value_or(now) == now || now % kStepsOfRanks == 0);
    if (may_record_ && !first_step_) first_step_ = now;
    launches_ = 0;
    recorded_before_ = recorded_;
  }
  // Returns one past the last instruction that this call has run; `index` itself if it ran none, and the caller then
  // runs that instruction. A dry run launches what there is and records nothing.
  size_t run(size_t index, const std::function<void(size_t)>& run_instruction, DryRun* dry);
  // One past the last instruction that run() would launch there; past `index` alone if it would launch nothing.
  [[nodiscard]] size_t end_of_launch(size_t index) const;
  // Whether the last run was to record; the same on all ranks, also where one of them could not.
  [[nodiscard]] bool has_tried() const { return !ranges_.empty() && may_record_; }
  // In the present run.
  [[nodiscard]] uint64_t launches() const { return launches_; }
  // In all runs, and in all runs before the present one: the present run may have launched those.
  [[nodiscard]] uint64_t recorded() const { return recorded_; }
  [[nodiscard]] uint64_t recorded_before() const { return recorded_before_; }

 private:
  struct Recording {
    std::vector<const void*> addresses;  // of the range's operands
    std::unique_ptr<DeviceGraph> graph;
  };
  struct Range {
    size_t begin = 0, end = 0;
    std::vector<OperandId> operands;
    std::vector<Recording> recordings;
    bool is_refused = false;
  };

  [[nodiscard]] bool may_be_part(const Instruction& instruction) const;
  [[nodiscard]] bool stays(OperandId operand) const;
  void find_ranges(const std::set<size_t>& begins);
  [[nodiscard]] const Recording* find(const Range& range) const;
  bool record(Range& range, const std::function<void(size_t)>& run_instruction) const;

  const Schedule& schedule_;
  const BoundOperands& operands_;
  std::vector<Range> ranges_;
  std::vector<int32_t> range_at_;            // by the instruction that begins it; -1: none begins there
  static constexpr uint64_t kPlainRuns = 2;  // before the first recording: libraries make themselves ready
  static constexpr uint64_t kStepsOfRanks = 16;
  const bool is_function_, is_of_ranks_;
  std::set<BufferId> lasting_;  // memory of results
  bool may_record_ = false;
  std::optional<uint64_t> first_step_;  // that was to record
  uint64_t runs_ = 0;
  uint64_t launches_ = 0;
  uint64_t recorded_ = 0, recorded_before_ = 0;
};

}  // namespace stepc
