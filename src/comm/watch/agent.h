// The launcher's agent that has started this process, such as torchrun's on each machine.
#pragma once

#include "comm/launch.h"

namespace stepc {

// Ranks of an agent that was killed would continue without it, and would hold what the run needs against the ranks that
// replace them. After this call the system sends this process a SIGTERM when its agent ends. Throws UserError if the
// agent is known to be gone already. Does nothing if no agent has started the process. The calling thread must live as
// long as the process.
void end_with_agent(const Launch& launch);

}  // namespace stepc
