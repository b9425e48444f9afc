#include "runtime/device_graphs.h"

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace stepc {

namespace {
constexpr size_t kLeastInstructions = 3;  // of a range: recording and launching fewer gains nothing
constexpr size_t kMostRecordings = 8;     // of a range whose memory moves again and again
constexpr size_t kMostOfFunction = 32;    // of a range of a function: as many micro-batches as a stage may hold
}  // namespace

DeviceGraphs::DeviceGraphs(const Schedule& schedule, const BoundOperands& operands, const std::set<size_t>& begins,
                           const GraphUse& use, bool is_of_ranks)
    : schedule_(schedule),
      operands_(operands),
      range_at_(schedule.instructions.size(), -1),
      is_function_(use.is_function),
      is_of_ranks_(is_of_ranks) {
  size_t result = 0;
  for (const ScheduleOutput& output : schedule.outputs)
    if (output.kind == ScheduleOutput::Kind::kReturn && result++ >= use.lasting_from && takes_memory(schedule, output))
      lasting_.insert(schedule.operands[output.operand.index()].buffer);
  if (!schedule.device.empty()) find_ranges(begins);
}

// Whether the operand is the device's and lies at one place from run to run, as long as nobody moves it.
bool DeviceGraphs::stays(OperandId operand) const {
  if (!operand.valid()) return false;
  const Buffer& buffer = schedule_.buffers[schedule_.operands[operand.index()].buffer.index()];
  if (buffer.space != Space::kDevice) return false;
  if (buffer.kind == Buffer::Kind::kOwn) return lasting_.contains(schedule_.operands[operand.index()].buffer);
  if (buffer.kind != Buffer::Kind::kInput || is_function_) return true;
  const InputKind kind = schedule_.inputs[buffer.input].kind;
  return kind == InputKind::kParameter || kind == InputKind::kBuffer || kind == InputKind::kOptimizerState ||
         !is_of_program(kind);
}

bool DeviceGraphs::may_be_part(const Instruction& instruction) const {
  using Kind = Instruction::Kind;
  constexpr Kind kParts[] = {Kind::kAten, Kind::kOp, Kind::kGenerated, Kind::kCopy, Kind::kLoss};
  if (std::ranges::find(kParts, instruction.kind) == std::end(kParts)) return false;
  if (instruction.number) return false;
  const auto is_read = [](const Arg& arg) { return std::holds_alternative<ReadNumber>(arg); };
  if (instruction.aten && std::ranges::any_of(instruction.aten->args, is_read)) return false;
  const auto is_kept = [](const PlannedAllocation& one) { return one.own; };
  if (!is_function_ && std::ranges::any_of(instruction.allocations, is_kept)) return false;
  const auto stays_there = [&](OperandId operand) { return stays(operand); };
  return !instruction.writes.empty() && std::ranges::all_of(instruction.reads, stays_there) &&
         std::ranges::all_of(instruction.writes, stays_there);
}

void DeviceGraphs::find_ranges(const std::set<size_t>& begins) {
  std::set<size_t> supplied;  // by the host, anew for each run
  for (const HostNumber& number : schedule_.host_numbers)
    if (number.instruction) supplied.insert(*number.instruction);
  const size_t count = schedule_.instructions.size();
  for (size_t begin = 0; begin < count;) {
    size_t end = begin;
    while (end < count && !supplied.contains(end) && may_be_part(schedule_.instructions[end]) &&
           (end == begin || !begins.contains(end)))
      ++end;
    if (end - begin >= kLeastInstructions) {
      Range range;
      range.begin = begin;
      range.end = end;
      std::set<OperandId> met;
      for (size_t i = begin; i < end; ++i)
        for (const auto* ids : {&schedule_.instructions[i].reads, &schedule_.instructions[i].writes})
          for (OperandId id : *ids)
            if (met.insert(id).second) range.operands.push_back(id);
      range_at_[begin] = static_cast<int32_t>(ranges_.size());
      ranges_.push_back(std::move(range));
    }
    begin = std::max(end, begin + 1);
  }
}

bool DeviceGraphs::record(Range& range, const std::function<void(size_t)>& run_instruction) const {
  std::unique_ptr<DeviceGraph> graph = make_device_graph(c10::Device(schedule_.device));
  if (graph == nullptr) return false;
  try {
    {
      const LibraryMemoryScope libraries;
      graph->begin();
    }
    for (size_t i = range.begin; i < range.end; ++i) run_instruction(i);
    graph->end();
  } catch (const std::exception& error) {
    graph->abandon();
    log().info("instructions {} to {} run one by one: {}", range.begin, range.end, first_line(error.what()));
    return false;
  }
  Recording& made = range.recordings.emplace_back();
  for (const OperandId id : range.operands) made.addresses.push_back(operands_.data(id));
  made.graph = std::move(graph);
  return true;
}

// The recording with operands that lay where they lie now; nullptr: there is none.
const DeviceGraphs::Recording* DeviceGraphs::find(const Range& range) const {
  const auto address = [&](OperandId id) -> const void* { return operands_.data(id); };
  const auto is_it = [&](const Recording& one) {
    return std::ranges::equal(range.operands, one.addresses, {}, address);
  };
  const auto found = std::ranges::find_if(range.recordings, is_it);
  return found == range.recordings.end() ? nullptr : &*found;
}

size_t DeviceGraphs::end_of_launch(size_t index) const {
  if (range_at_[index] < 0) return index + 1;
  const Range& range = ranges_[static_cast<size_t>(range_at_[index])];
  return find(range) != nullptr ? range.end : index + 1;
}

size_t DeviceGraphs::run(size_t index, const std::function<void(size_t)>& run_instruction, DryRun* dry) {
  if (range_at_[index] < 0) return index;
  Range& range = ranges_[static_cast<size_t>(range_at_[index])];
  if (range.is_refused) return index;
  const Recording* const recording = find(range);
  if (recording == nullptr) {
    if (!may_record_ || range.recordings.size() == (is_function_ ? kMostOfFunction : kMostRecordings)) return index;
    range.is_refused = !record(range, run_instruction);
    if (!range.is_refused) ++recorded_;
    return index;
  }
  if (dry != nullptr) dry->before(range.begin, range.end);
  recording->graph->launch();
  if (dry != nullptr) dry->after(range.begin, range.end);
  ++launches_;
  return range.end;
}

}  // namespace stepc
