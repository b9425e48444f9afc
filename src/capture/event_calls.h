// Finds the calls of a host event that are its own: step counters and what the host computes from them.
#pragma once

#include <string>

#include "ir/trace.h"

namespace stepc {

// Fills `event.own_calls` and decides its kind. An own call is one on which a host read inside the event depends, or
// one that writes host data to what outlives the step. If all own calls take only tiny tensors, a shadow run can repeat
// them before a replay. A read that depends on the gradients makes the event kEager; the replay then keeps the
// gradients for it. Returns why neither kind is possible, empty if one is.
std::string classify_event(Trace& trace, HostEvent& event, bool may_run_eagerly);

}  // namespace stepc
