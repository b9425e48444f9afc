#include "cost/cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <system_error>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"
#include "base/text.h"
#include "cost/named_target.h"
#include "cost/target_reader.h"

namespace stepc {

namespace {

constexpr int64_t kMostDevices = int64_t{1} << 20;  // as many as a mesh has ranks
constexpr double kGigabyte = 1e9;

// What collectives of large messages reach of a link's rate: NCCL's bus bandwidth (S. Bekman, Machine learning
// engineering, 2024: an all_reduce within a node of A100 235 of 300 GB/s, of H100 363 of 450; between nodes of H100 370
// GB/s on eight links of 50).
constexpr double kNvlinkShare = 0.8, kFabricShare = 0.92;
// Of one message of a ring: NCCL's tuning tables (nccl/src/graph/tuning.cc) have 0.6 us for NVLink's hardware and 2.7
// for a network's, and a few more for the simple protocol's synchronisation.
constexpr double kNvlinkLatency = 3e-6, kFabricLatency = 1e-5;

// Usual nodes. InfiniBand or RoCE, one network card a device: 200 Gbit/s (DGX A100), 400 Gbit/s (DGX H100, H200, B200,
// GB200 NVL72; NVIDIA's reference architectures).
struct UsualNode {
  std::string_view card;
  int64_t devices;
  double fabric_bytes_per_second;
};
constexpr auto kUsualNodes = std::to_array<UsualNode>({
    {"a100", 8, 25e9},
    {"a800", 8, 25e9},
    {"h100", 8, 50e9},
    {"h100-80", 8, 50e9},
    {"h100-96", 8, 50e9},
    {"h800", 8, 50e9},
    {"h200", 8, 50e9},
    {"b200", 8, 50e9},
    {"gb200", 72, 50e9},
});

Cluster usual_cluster(const UsualNode& usual, int64_t devices, const std::string& name) {
  Cluster cluster;
  cluster.name = name;
  cluster.device = usual.card;
  cluster.devices_per_node = std::min(devices, usual.devices);
  USER_CHECK(devices % cluster.devices_per_node == 0,
             "cluster {}: {} devices do not fill nodes of {}; write a cluster file for others", in_quotes(name),
             devices, usual.devices);
  cluster.nodes = devices / cluster.devices_per_node;
  cluster.target = named_target(cluster.device);
  Rates& rates = cluster.target.rates;
  rates.links.push_back(
      {"nvlink", cluster.devices_per_node, kNvlinkShare * rates.link_bytes_per_second, kNvlinkLatency});
  if (cluster.nodes > 1)
    rates.links.push_back({"infiniband", devices, kFabricShare * usual.fabric_bytes_per_second, kFabricLatency});
  return cluster;
}

// Target's readers begin with "target, line 3: ".
std::string as_of_cluster(std::string_view message) {
  constexpr std::string_view kTarget = "target, ";
  return message.starts_with(kTarget) ? str("cluster, {}", message.substr(kTarget.size())) : std::string(message);
}

void check_links(const target_text::TableReader& reader, const Cluster& cluster) {
  int64_t below = 1;
  for (const Link& link : cluster.target.rates.links) {
    if (link.devices % below != 0 || link.devices < below)
      reader.refuse(str("links: {} joins {} devices, which is no multiple of the {} of the level below",
                        in_quotes(link.name), link.devices, below));
    below = link.devices;
  }
  if (below != cluster.devices())
    reader.refuse(
        str("links: the last level joins {} devices, and nodes * devices_per_node are {}", below, cluster.devices()));
}

Cluster read_cluster(const toml::table& table, const std::string& folder) {
  target_text::TableReader reader("a cluster", table);
  Cluster cluster;
  cluster.name = reader.text("name");
  cluster.nodes = reader.size("nodes");
  cluster.devices_per_node = reader.size("devices_per_node");
  if (cluster.nodes > kMostDevices || cluster.devices_per_node > kMostDevices || cluster.devices() > kMostDevices)
    reader.refuse(str("nodes * devices_per_node: at most {} devices are planned for", kMostDevices));
  cluster.device = reader.text("target");
  std::error_code ignored;
  const std::filesystem::path beside = std::filesystem::path(folder) / cluster.device;
  const bool is_file = std::filesystem::is_regular_file(beside, ignored);
  std::vector<Link> links;
  target_text::read_rows("links", reader.get("links"), links, [](target_text::TableReader& row) {
    return Link{.name = row.text("name"),
                .devices = row.size("devices"),
                .bytes_per_second = row.rate("bytes_per_second"),
                .latency_seconds = row.seconds("latency_seconds")};
  });
  if (reader.has("memory_bytes")) cluster.cpu_memory_bytes = reader.size("memory_bytes");
  if (reader.has("cores_per_node")) cluster.cores_per_node = reader.size("cores_per_node");
  reader.end();
  cluster.target = named_target(is_file ? beside.string() : cluster.device);
  if (cluster.target.gpu.has_value() == (cluster.cpu_memory_bytes > 0))
    reader.refuse(cluster.target.gpu ? "memory_bytes: its target, a GPU, says how much it has"
                                     : "memory_bytes is missing: how much each device has, whose target is a CPU");
  if (cluster.target.gpu && cluster.cores_per_node > 0) reader.refuse("cores_per_node: its target is a GPU");
  cluster.target.rates.links = std::move(links);
  check_links(reader, cluster);
  return cluster;
}

std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const UsualNode& usual : kUsualNodes) names.push_back(str("{}x{}", usual.card, usual.devices));
  return names;
}

}  // namespace

std::string to_text(const Cluster& cluster) {
  std::string text = str("name = \"{}\"\nnodes = {}\ndevices_per_node = {}\ntarget = \"{}\"\n", cluster.name,
                         cluster.nodes, cluster.devices_per_node, cluster.device);
  if (cluster.cpu_memory_bytes > 0) text += str("memory_bytes = {}\n", cluster.cpu_memory_bytes);
  if (cluster.cores_per_node > 0) text += str("cores_per_node = {}\n", cluster.cores_per_node);
  for (const Link& link : cluster.target.rates.links)
    text += str("\n[[links]]\nname = \"{}\"\ndevices = {}\nbytes_per_second = {}\nlatency_seconds = {}\n", link.name,
                link.devices, link.bytes_per_second, link.latency_seconds);
  return text;
}

Cluster parse_cluster(std::string_view toml, const std::string& folder) {
  try {
    return read_cluster(target_text::parse(toml), folder);
  } catch (const UserError& error) {
    user_error("{}", as_of_cluster(error.what()));
  }
}

Cluster named_cluster(const std::string& name_or_path) {
  std::string name = name_or_path;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t times = name.rfind('x');
  if (times != std::string::npos) {
    const auto* const usual = std::ranges::find(kUsualNodes, std::string_view(name).substr(0, times), &UsualNode::card);
    int64_t devices = 0;
    const char* const end = name.data() + name.size();
    const auto [read, failed] = std::from_chars(name.data() + times + 1, end, devices);
    if (usual != kUsualNodes.end() && failed == std::errc() && read == end) {
      USER_CHECK(devices >= 1 && devices <= kMostDevices, "cluster {}: give 1 to {} devices", in_quotes(name_or_path),
                 kMostDevices);
      return usual_cluster(*usual, devices, name);
    }
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name_or_path, ignored))
    return target_text::read_file(name_or_path, [&](const std::string& text) {
      return parse_cluster(text, std::filesystem::path(name_or_path).parent_path().string());
    });
  user_error(
      "cluster {}: there is no such cluster and no such file; give a card and how many, as in {}, or a cluster file's "
      "path",
      in_quotes(name_or_path), fmt::join(cluster_names(), ", "));
}

std::string title_of(const Cluster& cluster) {
  const Target& target = cluster.target;
  std::string text = str("{} {} of {} {}", cluster.nodes, cluster.nodes == 1 ? "node" : "nodes",
                         cluster.devices_per_node, device_title(cluster));
  for (const Link& link : target.rates.links)
    text += str(", {} {:.3g} GB/s", link.name, link.bytes_per_second / kGigabyte);
  return text;
}

std::string device_title(const Cluster& cluster) {
  const Target& target = cluster.target;
  return target.gpu ? target.gpu->name : target.cpu.empty() ? std::string("CPU") : target.cpu;
}

Cluster with_shared_cores(Cluster cluster) {
  if (cluster.cores_per_node == 0) return cluster;
  const int64_t threads = cluster.devices_per_node * cluster.target.threads;
  if (threads > cluster.cores_per_node)
    target_text::slow_down(cluster.target, static_cast<double>(threads) / static_cast<double>(cluster.cores_per_node));
  return cluster;
}

}  // namespace stepc
