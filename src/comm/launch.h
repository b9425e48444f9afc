// Launch: this process's place among the ranks of a run, as its launcher states it in the environment. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace stepc {

// The time that ranks wait for one that does not answer, if nothing else is set.
inline constexpr double kStallSeconds = 45;
// The same for a program whose first rank may do work of its own meanwhile, such as evaluation: as long as PyTorch's
// NCCL waits.
inline constexpr double kStallSecondsOfPrograms = 600;

struct Launch {
  int64_t rank = 0, ranks = 1;              // among the processes of the run
  int64_t local_rank = 0, local_ranks = 1;  // among the processes on this machine
  // Where the ranks find each other. Rank 0 listens there, unless the launcher's agent does (agent_store).
  std::string address = "127.0.0.1";
  int port = 0;
  bool agent_store = false;
  // How often the launcher has started the run again. A store of its agent still holds the messages of earlier
  // attempts.
  int64_t restart = 0;
  // "torchrun", "Open MPI", "Slurm", "Kubeflow"; "RANK and WORLD_SIZE" for any other launcher that sets these; empty:
  // one process.
  std::string by = {};
  // The launcher's name for the run, the same after a restart; empty: none.
  std::string run = {};
  // A secret that only the ranks share: they connect to nobody without it. Empty: they trust everybody.
  std::string secret = {};
  // The agent's process, which is this one's parent as long as it lives; 0: unknown.
  int64_t agent = 0;

  // Whether an agent has started this process, as its parent; it ends all ranks when the first one ends. Not every
  // agent keeps their store.
  [[nodiscard]] bool is_of_agent() const { return agent_store || by == "torchrun"; }
  // Whether several agents have started the ranks; when the number of agents changes, they stop their ranks one after
  // the other.
  [[nodiscard]] bool has_agents() const { return by == "torchrun" && local_ranks < ranks; }
  bool operator==(const Launch&) const = default;
};

// `variable`: as getenv. The first group in this list that is set decides:
//   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT     torchrun, and all who do as it does
//   PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR, ..._PORT     Kubeflow's pods, of one process each
//   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE and MASTER_*           mpirun of Open MPI
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and MASTER_*               srun
// The last two also have an address for ranks that are all on one machine (Slurm: always) and a port for each job.
// STEPC_AGENT is the process of a launcher's agent that is this one's parent; `stepc train --restarts` sets it. The
// secret is STEPC_SECRET, or the contents of the file that STEPC_SECRET_FILE names, which others may not read. Nothing
// set, or a shell of Slurm's: one process. Throws UserError for values that are incomplete, no numbers or
// contradictory.
Launch launch_of(const std::function<const char*(const char*)>& variable);

}  // namespace stepc
