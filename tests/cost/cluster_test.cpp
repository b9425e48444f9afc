// Clusters by name and as text, and what is refused.
#include "cost/cluster.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "cost/named_target.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

const char* const kTwoNodes = R"(name = "two"
nodes = 2
devices_per_node = 8
target = "h100"

[[links]]
name = "nvlink"
devices = 8
bytes_per_second = 360e9
latency_seconds = 3e-6

[[links]]
name = "infiniband"
devices = 16
bytes_per_second = 46e9
latency_seconds = 1e-05
)";

std::string with(const std::string& line, const std::string& other) {
  std::string text = kTwoNodes;
  const size_t at = text.find(line);
  EXPECT_NE(at, std::string::npos) << line;
  return text.replace(at, line.size(), other);
}

TEST(Cluster, ReadsBackToTheSame) {
  const Cluster two = parse_cluster(kTwoNodes);
  EXPECT_EQ(two.devices(), 16);
  EXPECT_EQ(two.target.gpu, named_target("h100").gpu);
  EXPECT_EQ(two.target.rates.links, (std::vector<Link>{{"nvlink", 8, 360e9, 3e-6}, {"infiniband", 16, 46e9, 1e-5}}));
  EXPECT_EQ(parse_cluster(to_text(two)), two);
  for (const char* name :
       {"a100x16", "a800x8", "h100x1024", "h100-96x8", "h800x64", "h200x8", "b200x16", "gb200x144"}) {
    const Cluster cluster = named_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(parse_cluster(to_text(cluster)), cluster);
  }
  EXPECT_EQ(title_of(two), "2 nodes of 8 NVIDIA H100 80GB, nvlink 360 GB/s, infiniband 46 GB/s");
}

TEST(Cluster, ACpuSaysItsMemory) {
  const TempDir folder;
  Target cpu;
  cpu.cpu = "znver4";
  write_file_synced(folder / "cpu.toml", to_text(cpu));
  const std::string of_cpus = with("\"h100\"", "\"cpu.toml\"");
  EXPECT_USER_ERROR(parse_cluster(of_cpus, folder.path().string()),
                    "memory_bytes is missing: how much each device has, whose target is a CPU");
  const Cluster cluster =
      parse_cluster(with("\"h100\"", "\"cpu.toml\"\nmemory_bytes = 8000000000"), folder.path().string());
  EXPECT_EQ(cluster.memory_bytes(), 8000000000);
  EXPECT_EQ(parse_cluster(to_text(cluster), folder.path().string()), cluster);
  EXPECT_EQ(title_of(cluster), "2 nodes of 8 znver4, nvlink 360 GB/s, infiniband 46 GB/s");
  EXPECT_USER_ERROR(parse_cluster(with("\"h100\"", "\"h100\"\nmemory_bytes = 8000000000")),
                    "memory_bytes: its target, a GPU, says how much it has");
}

// Eight ranks of a machine of two cores: a fourth of a core each, and their links as they were measured.
TEST(Cluster, DevicesThatShareCoresTakeTurns) {
  const TempDir folder;
  write_file_synced(folder / "cpu.toml", to_text(Target{}));
  const auto shared_by = [&](int64_t cores) {
    const std::string text = str("\"cpu.toml\"\nmemory_bytes = 8000000000\ncores_per_node = {}", cores);
    const Cluster cluster = parse_cluster(with("\"h100\"", text), folder.path().string());
    EXPECT_EQ(parse_cluster(to_text(cluster), folder.path().string()), cluster);
    return with_shared_cores(cluster);
  };
  const Target alone = shared_by(8).target, sharing = shared_by(2).target;
  EXPECT_EQ(alone, shared_by(64).target);
  EXPECT_EQ(sharing.flops_per_second, alone.flops_per_second / 4);
  EXPECT_EQ(sharing.rates.instruction_seconds, alone.rates.instruction_seconds * 4);
  EXPECT_EQ(sharing.rates.gathers_per_second, alone.rates.gathers_per_second / 4);
  EXPECT_EQ(sharing.rates.matmuls[0].flops_per_second, alone.rates.matmuls[0].flops_per_second / 4);
  EXPECT_EQ(sharing.rates.links, alone.rates.links);
  EXPECT_EQ(sharing.rates.link_latency_seconds, alone.rates.link_latency_seconds);
  EXPECT_USER_ERROR(parse_cluster(with("\"h100\"", "\"h100\"\ncores_per_node = 2")),
                    "cores_per_node: its target is a GPU");
}

TEST(Cluster, ANameIsACardAndHowMany) {
  const Cluster many = named_cluster("H100x1024");
  EXPECT_EQ(many.nodes, 128);
  EXPECT_EQ(many.devices_per_node, 8);
  EXPECT_EQ(many.target.rates.links.back().devices, 1024);
  EXPECT_EQ(named_cluster("h100x4").target.rates.links.size(), 1U) << "one node";
  EXPECT_EQ(named_cluster("gb200x144").devices_per_node, 72);
  EXPECT_EQ(named_cluster("h100-96x8").target.gpu->memory_bytes, 96'000'000'000);
  EXPECT_USER_ERROR(named_cluster("h100x12"), "12 devices do not fill nodes of 8; write a cluster file");
  EXPECT_USER_ERROR(named_cluster("h100x0"), "give 1 to 1048576 devices");
  EXPECT_USER_ERROR(named_cluster("v900x8"), "there is no such cluster and no such file; give a card and how many");
  EXPECT_USER_ERROR(named_cluster("h100"), "there is no such cluster");
}

TEST(Cluster, ATargetFileLiesBesideIt) {
  const TempDir directory;
  Target card = named_target("h100");
  card.gpu->name = "a card of one's own";
  write_file_synced(directory.path() / "card.toml", to_text(card));
  write_file_synced(directory.path() / "cluster.toml", with("\"h100\"", "\"card.toml\""));
  EXPECT_EQ(named_cluster((directory.path() / "cluster.toml").string()).target.gpu->name, "a card of one's own");
}

TEST(Cluster, ARefusalNamesLineAndKey) {
  EXPECT_USER_ERROR(parse_cluster(with("nodes = 2\n", "nodes = 0\n")),
                    "cluster, line 2: nodes = 0: must be a whole number from 1");
  EXPECT_USER_ERROR(parse_cluster(with("nodes = 2\n", "")), "cluster, line 1: a cluster: nodes is missing");
  EXPECT_USER_ERROR(parse_cluster(with("nodes = 2\n", "nodes = 2\nnode = 3\n")), "did you mean nodes?");
  EXPECT_USER_ERROR(parse_cluster(with("46e9", "-46e9")), "cluster, line 15: bytes_per_second = ");
  EXPECT_USER_ERROR(parse_cluster(with("latency_seconds = 3e-6\n", "")), "latency_seconds is missing");
  EXPECT_USER_ERROR(parse_cluster(with("devices = 16", "devices = 12")),
                    "\"infiniband\" joins 12 devices, which is no multiple of the 8 of the level below");
  EXPECT_USER_ERROR(parse_cluster(with("devices = 16", "devices = 32")),
                    "the last level joins 32 devices, and nodes * devices_per_node are 16");
  EXPECT_USER_ERROR(parse_cluster(with("nodes = 2", "nodes = 1099511627776")), "devices are planned for");
  EXPECT_USER_ERROR(parse_cluster(with("\"h100\"", "\"h101\"")), "target \"h101\": there is no such target");
  EXPECT_USER_ERROR(parse_cluster("nodes = ["), "cluster, line 1: not TOML");
}

}  // namespace
}  // namespace stepc
