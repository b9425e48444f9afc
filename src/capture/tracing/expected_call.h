// The calls of a Trace in the form that a traced step is compared with: operators are looked up and constants are
// converted once for all runs.
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
  bool runs = false;                   // immediately, beside the plan: a view, or one of the host's own calls
  bool is_filled_later = false;        // the host fills its result
  bool supplied = false;               // the host supplies its numbers, which may differ from the recorded ones
  std::optional<size_t> read;          // the event of the read that ends it
  std::optional<size_t> made_by_host;  // the event of the host's own call that it is
  std::vector<c10::IValue> constants;  // by argument; empty for others
};
std::vector<ExpectedCall> expected_calls(const Trace& trace);

// Whether the host may supply another number for this argument.
bool is_any_number(const Arg& arg);

}  // namespace stepc
