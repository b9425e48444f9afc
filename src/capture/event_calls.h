// Which calls of a host event are its own: step counters and what the host computes from them.
#pragma once

#include <string>

#include "ir/trace.h"

namespace stepc {

// Fills `event.own_calls` and decides its kind. The own calls are those that a host read inside the event depends on.
// While all of them take tiny tensors alone, a shadow run can do them before a replay; a read that depends on the
// gradients makes the event kEager, and the gradients that it finds are kept for it. Returns why neither is possible,
// empty if one is.
std::string classify_event(Trace& trace, HostEvent& event, bool may_run_eagerly);

}  // namespace stepc
