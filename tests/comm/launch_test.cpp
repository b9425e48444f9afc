// What each launcher says in the environment, and what is wrong with half of it.
#include "comm/launch.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "base/check.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

using Environment = std::map<std::string, std::string>;

Launch launch(const Environment& environment) {
  return launch_of([&](const char* name) {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}
void expect_refused(const Environment& environment, const std::string& text) {
  try {
    const Launch got = launch(environment);
    ADD_FAILURE() << "rank " << got.rank << " of " << got.ranks << "; expected: " << text;
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), text);
  }
}
Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}
Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29400"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"TORCHELASTIC_RUN_ID", "none"}};
const Environment kSlurm = {{"SLURM_PROCID", "5"},
                            {"SLURM_NTASKS", "7"},
                            {"SLURM_STEP_NUM_TASKS", "7"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
                            {"SLURM_STEP_NODELIST", "gpu[07-08,11],other"},
                            {"SLURM_JOB_ID", "4711"},
                            {"SLURM_STEP_ID", "0"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prterun-host-17@1"}};
const Environment kPod = {{"PET_NNODES", "4"},
                          {"PET_NODE_RANK", "3"},
                          {"PET_NPROC_PER_NODE", "auto"},
                          {"PET_MASTER_ADDR", "job-node-0-0.job"},
                          {"PET_MASTER_PORT", "29400"}};

TEST(Launch, NobodySaysAnything) {
  EXPECT_EQ(launch({}), Launch());
  EXPECT_EQ(launch({{"RANK", ""}, {"MASTER_ADDR", "10.0.0.1"}, {"PET_NNODES", "1"}}), Launch());
}

TEST(Launch, TheSecret) {
  const std::string secret = "0123456789abcdef";
  EXPECT_EQ(launch(with(kTorchrun, "STEPC_SECRET", secret)).secret, secret);
  EXPECT_EQ(launch({{"STEPC_SECRET", secret}}), Launch()) << "one process meets nobody";
  expect_refused(with(kTorchrun, "STEPC_SECRET", "0123456789"),
                 "STEPC_SECRET: a secret of 10 characters is soon guessed: give at least 16");
  const TempDir directory;
  const std::string file = directory / "secret";
  const Environment from_file = with(kTorchrun, "STEPC_SECRET_FILE", file);
  EXPECT_THROW(launch(from_file), UserError);
  std::ofstream(file) << secret << "\nanything\n";
  std::filesystem::permissions(file, std::filesystem::perms(0640));
  expect_refused(from_file,
                 str("STEPC_SECRET_FILE: others may read {}, which is to be the ranks' secret: chmod 600 it", file));
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  EXPECT_EQ(launch(from_file).secret, secret);
}

TEST(Launch, Torchrun) {
  EXPECT_EQ(launch(kTorchrun), (Launch{5, 8, 1, 4, "10.0.0.1", 29400, true, 2, "torchrun"}));
  const Launch elsewhere = launch(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False"));
  EXPECT_FALSE(elsewhere.agent_store);
  EXPECT_TRUE(elsewhere.is_of_agent()) << "it is the agent's all the same";
  EXPECT_EQ(launch(with(kTorchrun, "TORCHELASTIC_RUN_ID", "job7")).run, "job7");
  EXPECT_EQ(launch(with(kTorchrun, "STEPC_AGENT", "4711")).agent, 4711);
  expect_refused(with(kTorchrun, "STEPC_AGENT", "init"),
                 str("the environment variable STEPC_AGENT is 'init', and not a number from 1 to {}", INT32_MAX));
  EXPECT_TRUE(launch(kTorchrun).has_agents());
  EXPECT_FALSE(launch(with(with(kTorchrun, "WORLD_SIZE", "4"), "RANK", "1")).has_agents());
  // Inside of what another launcher started.
  Environment nested = kSlurm;
  nested.insert(kTorchrun.begin(), kTorchrun.end());
  nested.insert(kPod.begin(), kPod.end());
  EXPECT_EQ(launch(nested), launch(kTorchrun));
}

TEST(Launch, ByHand) {
  const Environment two = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(launch(two), (Launch{1, 2, 0, 1, "localhost", 29500, false, 0, "RANK and WORLD_SIZE"}));
  EXPECT_EQ(launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).ranks, 1) << "one meets nobody";
}

TEST(Launch, KubeflowWithoutLocalRank) {
  const Launch job = launch({{"RANK", "1"},
                             {"WORLD_SIZE", "3"},
                             {"MASTER_ADDR", "job-master-0"},
                             {"MASTER_PORT", "23456"},
                             {"PET_NNODES", "3"},
                             {"PET_NPROC_PER_NODE", "1"}});
  EXPECT_EQ(job, (Launch{1, 3, 0, 1, "job-master-0", 23456, false, 0, "Kubeflow"}));
  EXPECT_EQ(launch(kPod), (Launch{3, 4, 0, 1, "job-node-0-0.job", 29400, false, 0, "Kubeflow"}));
  EXPECT_EQ(launch(without(kPod, "PET_NPROC_PER_NODE")), launch(kPod)) << "torchrun's is one where nobody says it";
  EXPECT_FALSE(launch(kPod).is_of_agent());
}

TEST(Launch, OpenMpi) {
  const Launch one = launch(kOpenMpi);
  EXPECT_EQ(one.address, "127.0.0.1");
  EXPECT_TRUE(one.port >= 15000 && one.port < 25000) << one.port;
  EXPECT_EQ(launch(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "0")).port, one.port);
  EXPECT_EQ(one, (Launch{1, 2, 1, 2, "127.0.0.1", one.port, false, 0, "Open MPI"}));
  // The daemons of several machines may themselves have been started by Slurm.
  Environment several = with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "4");
  several.insert(kSlurm.begin(), kSlurm.end());
  several["MASTER_ADDR"] = "10.0.0.7";
  several["MASTER_PORT"] = "29500";
  EXPECT_EQ(launch(several), (Launch{1, 4, 1, 2, "10.0.0.7", 29500, false, 0, "Open MPI"}));
}

TEST(Launch, Slurm) {
  const Launch task = launch(kSlurm);
  EXPECT_TRUE(task.port >= 15000 && task.port < 25000) << task.port;
  EXPECT_EQ(task, (Launch{5, 7, 1, 3, "gpu07", task.port, false, 0, "Slurm"}));
  EXPECT_EQ(launch(with(kSlurm, "SLURM_NODEID", "1")).local_ranks, 2);
  EXPECT_NE(launch(with(kSlurm, "SLURM_JOB_ID", "4712")).port, task.port);
  EXPECT_EQ(launch(with(kSlurm, "SLURM_STEP_NODELIST", "a1,b[2-3]")).address, "a1");
  EXPECT_EQ(launch(with(kSlurm, "SLURM_STEP_NODELIST", "r[3,5]n1")).address, "r3n1");
  Environment chosen = with(kSlurm, "MASTER_ADDR", "10.0.0.9");
  chosen["MASTER_PORT"] = "29500";
  EXPECT_EQ(launch(chosen), (Launch{5, 7, 1, 3, "10.0.0.9", 29500, false, 0, "Slurm"}));
  const Launch one_node = launch({{"SLURM_PROCID", "1"},
                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                  {"SLURM_STEP_NODELIST", "node3"},
                                  {"SLURM_JOB_ID", "1"}});
  EXPECT_EQ(one_node.address, "127.0.0.1");
}

TEST(Launch, AShellOfSlurmIsOneProcess) {
  EXPECT_EQ(launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "1"}}),
            Launch());
  EXPECT_EQ(launch({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}), Launch());
}

TEST(Launch, RefusesHalf) {
  expect_refused(without(kTorchrun, "WORLD_SIZE"),
                 "the environment variable RANK is '5' and WORLD_SIZE is not set: set both, or none for one process");
  expect_refused(without(kTorchrun, "RANK"),
                 "the environment variable WORLD_SIZE is '8' and RANK is not set: set both, or none for one process");
  expect_refused({{"LOCAL_RANK", "0"}},
                 "the environment variable LOCAL_RANK is '0' and WORLD_SIZE is not set: set both, or none for one "
                 "process");
  expect_refused(without(kTorchrun, "MASTER_ADDR"),
                 "the environment variable WORLD_SIZE is 8 and MASTER_ADDR is not set: set it to the address of the "
                 "machine of rank 0");
  expect_refused(without(kTorchrun, "MASTER_PORT"),
                 "the environment variable WORLD_SIZE is 8 and MASTER_PORT is not set: set it to a port that is free "
                 "where rank 0 runs");
  expect_refused(without(kPod, "PET_NODE_RANK"),
                 "the environment variable PET_NNODES is '4' and PET_NODE_RANK is not set: set both, or none for one "
                 "process");
  expect_refused(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"),
                 "the environment variable OMPI_COMM_WORLD_RANK is '1' and OMPI_COMM_WORLD_SIZE is not set: set both, "
                 "or none for one process");
  expect_refused(with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "4"),
                 "the environment variable OMPI_COMM_WORLD_SIZE is 4 and MASTER_ADDR is not set: set it to the address "
                 "of the machine of rank 0");
  expect_refused(without(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST"),
                 "the environment variable SLURM_STEP_NUM_TASKS is 7 and MASTER_ADDR is not set: set it to the address "
                 "of the machine of rank 0");
  expect_refused(without(kSlurm, "SLURM_JOB_ID"),
                 "the environment variable SLURM_STEP_NUM_TASKS is 7 and MASTER_PORT is not set: set it to a port that "
                 "is free where rank 0 runs");
}

TEST(Launch, RefusesWhatContradictsItself) {
  expect_refused(with(kTorchrun, "RANK", "8"),
                 "the environment variable RANK is 8, and WORLD_SIZE is 8: ranks count from 0");
  expect_refused(with(kTorchrun, "LOCAL_RANK", "4"),
                 "the environment variable LOCAL_RANK is 4, and LOCAL_WORLD_SIZE is 4");
  expect_refused(with(kTorchrun, "LOCAL_WORLD_SIZE", "9"),
                 "the environment variable LOCAL_WORLD_SIZE is 9, more than the 8 of WORLD_SIZE");
  expect_refused(with(kPod, "PET_NPROC_PER_NODE", "8"),
                 "the environment variable PET_NPROC_PER_NODE is 8, and this process is a pod's only one: start it "
                 "with torchrun");
  expect_refused(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "x"),
                 "the environment variable SLURM_STEP_TASKS_PER_NODE is 'x', which does not fit task 1 of node 2 of 7 "
                 "tasks");
}

TEST(Launch, RefusesWhatIsNoNumber) {
  expect_refused(with(kTorchrun, "RANK", "five"),
                 "the environment variable RANK is 'five', and not a number from 0 to 1048576");
  expect_refused(with(kTorchrun, "RANK", "-1"),
                 "the environment variable RANK is '-1', and not a number from 0 to 1048576");
  expect_refused(with(kTorchrun, "WORLD_SIZE", "0"),
                 "the environment variable WORLD_SIZE is '0', and not a number from 1 to 1048576");
  expect_refused(with(kTorchrun, "MASTER_PORT", "70000"),
                 "the environment variable MASTER_PORT is '70000', and not a number from 1 to 65535");
  expect_refused(with(kTorchrun, "MASTER_PORT", "29500x"),
                 "the environment variable MASTER_PORT is '29500x', and not a number from 1 to 65535");
  expect_refused(with(kPod, "PET_NNODES", "1:4"),
                 "the environment variable PET_NNODES is 1:4: which of so many pods there are is for torchrun to find "
                 "out: start this process with it");
}

}  // namespace
}  // namespace stepc
