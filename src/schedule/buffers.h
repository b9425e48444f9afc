// Shared code of both ways to a Schedule: operands, and the program's tensors with their memory. Internal to schedule/.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "ir/trace.h"
#include "schedule/schedule.h"

namespace stepc {

inline OperandId add_operand(Schedule& schedule, Operand operand) {
  schedule.operands.push_back(std::move(operand));
  return OperandId(schedule.operands.size() - 1);
}

// Adds an input in memory of its own; makes the buffer of `operand`.
OperandId add_input_buffer(Schedule& schedule, InputKind kind, const std::string& key, Operand operand);

// Whether two operands begin at one place in memory: in one buffer, or in overlapping buffers of the arena.
bool begin_at_one_place(const Schedule& schedule, OperandId a, OperandId b);

// Adds all externals of a trace but its constants, with one buffer for each storage. `memory` receives the buffers by
// the externals' names.
void add_trace_inputs(Schedule& schedule, const Trace& trace,
                      std::map<std::pair<InputKind, std::string>, BufferId>& memory);

}  // namespace stepc
