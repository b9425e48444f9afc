#include "comm/watch/agent.h"

#include <csignal>
#include <cstdlib>

#include <sys/prctl.h>
#include <unistd.h>

#include "base/check.h"

namespace stepc {

void end_with_agent(const Launch& launch) {
  unsetenv("STEPC_AGENT");  // of this process alone: what it starts has other parents
  if (!launch.is_of_agent()) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // It may have died before: of that nobody is told.
  USER_CHECK(launch.agent == 0 || getppid() == launch.agent,
             "the agent that started this rank, process {}, is gone: start the run again, from what it has saved",
             launch.agent);
}

}  // namespace stepc
