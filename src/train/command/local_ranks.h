// The launch of a run's ranks on this machine: a process each, with the variables that torchrun gives, started together
// and ended together. What a rank says goes to a file of its own; nothing is restarted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepc::train {

// Whether whoever started this process has given its ranks one (comm/launch.h). Else they get one of their own.
bool has_secret();

struct LocalRanks {
  int ranks = 0;
  std::vector<std::string> command;   // program and its arguments, the same for every rank
  std::filesystem::path logs;         // where rank-0.log and on are, of an existing directory; they are added to
  double failure_grace_seconds = 10;  // that the others have after SIGTERM, when a rank failed
  double stop_grace_seconds = 30;     // that all have after a signal that this process passed on
};

// What a rank of this launcher ends with where it lost another one, which is the one to name. Elsewhere that is 1.
inline constexpr int kLostRankStatus = 75;

// Runs the ranks to their end. They have RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (a
// port that stays free for rank 0 to listen on, with SO_REUSEADDR) and STEPC_LAUNCHER=1; rank 0, whose output this
// process shows as it comes, also STEPC_LAUNCHER_COLUMNS where it is shown on a terminal. Each leads a process group;
// no process of those outlives its rank, and no rank this process.
//
// Returns 0 when all ended so; 128 + signal when one of StopSignals stopped them, passed on to all or agreed on after
// one of them got it; else the status of the rank that failed first (128 + signal of one that was ended by a signal; 1
// where one did not answer the others), having said so on standard error with the last lines that the rank wrote there
// and rank 0 did not. Throws UserError where not all ranks can be started.
int run_local_ranks(const LocalRanks& launch);

}  // namespace stepc::train
