// Launch: who this process is among the ranks of a run, as whoever started it says in the environment. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace stepc {

// That ranks wait for one that does not answer, where nobody says how long.
inline constexpr double kStallSeconds = 45;
// Of a program whose first rank may do work of its own meanwhile, such as evaluation: as long as PyTorch's NCCL waits.
inline constexpr double kStallSecondsOfPrograms = 600;

struct Launch {
  int64_t rank = 0, ranks = 1;              // among the processes of the run
  int64_t local_rank = 0, local_ranks = 1;  // among those on this machine
  // Where the ranks find each other: rank 0 listens there, unless the launcher's agent does (agent_store).
  std::string address = "127.0.0.1";
  int port = 0;
  bool agent_store = false;
  // How often the launcher has started the run again: a store of its agent still holds what earlier attempts said.
  int64_t restart = 0;
  // "torchrun", "Open MPI", "Slurm", "Kubeflow", "RANK and WORLD_SIZE" for whoever else set these; empty: one process.
  std::string by = {};
  // What the launcher calls the run, the same when it starts the run again; empty: nothing.
  std::string run = {};
  // What all ranks have and nobody else does: they meet nobody without it. Empty: everybody is believed.
  std::string secret = {};
  // The agent's process, which is this one's parent as long as it lives; 0: not known.
  int64_t agent = 0;

  // Whether an agent has started this process, as its parent, which ends all ranks with the first of them. Not every
  // one keeps their store.
  [[nodiscard]] bool is_of_agent() const { return agent_store || by == "torchrun"; }
  // Whether several agents have started the ranks, which stop them one after the other where their number changes.
  [[nodiscard]] bool has_agents() const { return by == "torchrun" && local_ranks < ranks; }
  bool operator==(const Launch&) const = default;
};

// `variable`: as getenv. The first of these that says something decides:
//   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT     torchrun, and all who do as it does
//   PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_MASTER_ADDR, ..._PORT     Kubeflow's pods, of one process each
//   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE and MASTER_*           mpirun of Open MPI
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and MASTER_*               srun
// The last two also know an address where all ranks are on one machine (Slurm: always) and a port of the job's own.
// STEPC_AGENT is the process of a launcher's agent that is this one's parent; `stepc train --restarts` sets it.
// The secret is STEPC_SECRET, or what the file holds that STEPC_SECRET_FILE names, which others may not read.
// Nothing set, or a shell of Slurm's: one process. UserError for what is given by half, is no number or contradicts
// itself.
Launch launch_of(const std::function<const char*(const char*)>& variable);

}  // namespace stepc
