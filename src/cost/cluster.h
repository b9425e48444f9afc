// Cluster: many devices as data: their kind, their number, and the links between them. Planning for a mesh asks a
// Cluster, so a step can be planned for machines that one does not have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cost/target.h"

namespace stepc {

struct Cluster {
  std::string name;
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  std::string device;            // a name for named_target(), or a Target file's path
  Target target = {};            // of each device; its rates have one level of links or more
  int64_t cpu_memory_bytes = 0;  // of each device, if it is a CPU's share of a machine
  int64_t cores_per_node = 0;    // of CPUs whose devices may share them; 0: each device has its own
  [[nodiscard]] int64_t devices() const { return nodes * devices_per_node; }
  [[nodiscard]] int64_t memory_bytes() const { return target.gpu ? target.gpu->memory_bytes : cpu_memory_bytes; }
  bool operator==(const Cluster&) const = default;
};

// As TOML that parse_cluster() reads back to the same value:
//     name = "h100x16"
//     nodes = 2
//     devices_per_node = 8
//     target = "h100"                   a name (cost/named_target.h), or a Target file's path from this file's folder
//     memory_bytes = 8000000000         of each device; of CPUs alone, a GPU's Target says it
//     cores_per_node = 2                of CPUs alone; may be left out, if each device has cores of its own
//     [[links]]                         the innermost first; each joins groups of so many devices, the last one all
//     name = "nvlink"
//     devices = 8
//     bytes_per_second = 360e9          each way, of each device, while all the others send too
//     latency_seconds = 3e-6
//     [[links]]
//     name = "infiniband"
//     devices = 16
//     bytes_per_second = 46e9
//     latency_seconds = 1e-05
std::string to_text(const Cluster& cluster);
// Throws UserError with line and key for a key that is missing, unknown or impossible, and for groups that do not
// divide each other. `folder`: paths in the text are relative to it.
Cluster parse_cluster(std::string_view toml, const std::string& folder = ".");

// "h100x1024": this many of that card (cost/named_target.h) in its usual nodes, 8 in each, 72 for a GB200; or a file's
// path. Throws UserError, with the known names, for anything else, and for devices that do not fill nodes.
Cluster named_cluster(const std::string& name_or_path);

// "128 nodes of 8 NVIDIA H100 80GB, nvlink 360 GB/s, infiniband 46 GB/s".
std::string title_of(const Cluster& cluster);
// "NVIDIA H100 80GB", "znver4", "CPU".
std::string device_title(const Cluster& cluster);

// The cluster as each device finds it while all compute: where they have more threads than there are cores, all work
// but exchanges takes as much longer.
Cluster with_shared_cores(Cluster cluster);

}  // namespace stepc
