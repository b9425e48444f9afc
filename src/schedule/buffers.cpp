#include "schedule/buffers.h"

namespace stepc {

OperandId add_input_buffer(Schedule& schedule, InputKind kind, const std::string& key, Operand operand) {
  const auto bytes = static_cast<uint64_t>(extent_of(operand) * size_of(operand.dtype));
  schedule.buffers.push_back({Buffer::Kind::kInput, bytes, 0, static_cast<uint32_t>(schedule.inputs.size()), ""});
  operand.buffer = BufferId(schedule.buffers.size() - 1);
  schedule.inputs.push_back({kind, key, add_operand(schedule, std::move(operand))});
  return schedule.inputs.back().operand;
}

bool begin_at_one_place(const Schedule& schedule, OperandId a, OperandId b) {
  const auto begin = [&](const Operand& operand, const Buffer& buffer) {
    return buffer.offset + static_cast<uint64_t>(operand.offset * size_of(operand.dtype));
  };
  const Operand &one = schedule.operands[a.index()], &other = schedule.operands[b.index()];
  const Buffer &of_one = schedule.buffers[one.buffer.index()], &of_other = schedule.buffers[other.buffer.index()];
  const bool are_in_arena = of_one.kind == Buffer::Kind::kArena && of_other.kind == Buffer::Kind::kArena;
  return (one.buffer == other.buffer || are_in_arena) && begin(one, of_one) == begin(other, of_other);
}

void add_trace_inputs(Schedule& schedule, const Trace& trace,
                      std::map<std::pair<InputKind, std::string>, BufferId>& memory) {
  std::map<StorageId, BufferId> buffers;
  for (const External& external : trace.externals) {
    if (external.owner == Owner::kConstant) continue;
    const Value& value = trace.values[external.value.index()];
    const auto [buffer, is_new] = buffers.emplace(value.storage, BufferId(schedule.buffers.size()));
    if (is_new)
      schedule.buffers.push_back({Buffer::Kind::kInput, trace.storages[value.storage.index()].bytes, 0,
                                  static_cast<uint32_t>(schedule.inputs.size()), "",
                                  trace.storages[value.storage.index()].space});
    const OperandId operand = add_operand(
        schedule, {buffer->second, value.dtype, value.sizes, value.strides, value.offset, value.conj, value.neg});
    schedule.inputs.push_back({kind_of(external.owner), external.key, operand});
    memory.emplace(std::pair(kind_of(external.owner), external.key), buffer->second);
  }
}

}  // namespace stepc
