// The agent of a launcher that has started this process, as torchrun's on each machine.
#pragma once

#include "comm/launch.h"

namespace stepc {

// Ranks of an agent that was killed would go on without it, and hold what the run needs against the one that somebody
// starts in its stead: from now on the system sends this process a SIGTERM when its agent ends. UserError where the
// agent is gone by now, as far as that is known. Nothing where no agent has started it. The calling thread is
// one that lives as long as the process.
void end_with_agent(const Launch& launch);

}  // namespace stepc
