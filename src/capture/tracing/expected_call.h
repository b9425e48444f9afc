// The calls of a Trace as a traced step is held to them: the operator is looked up and constants are converted, once
// for all runs.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "ir/trace.h"

namespace stepc {

// One call of the trace.
struct ExpectedCall {
  c10::OperatorHandle op;
  bool runs = false;                   // at once, beside the plan: a view, or one of the host's own calls
  bool is_filled_later = false;        // the host fills what it makes
  bool supplied = false;               // the host supplies its numbers, which may differ from the recorded ones
  std::optional<size_t> read;          // the event that it ends with
  std::optional<size_t> made_by_host;  // the event that it is
  std::vector<c10::IValue> constants;  // by argument, where it is one
};
std::vector<ExpectedCall> expected_calls(const Trace& trace);

// Whether the host may supply another number in its place.
bool is_any_number(const Arg& arg);

}  // namespace stepc
