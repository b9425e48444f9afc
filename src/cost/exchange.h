// exchange(): the time of a collective on the links of a cluster, by the fastest algorithm there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cost/rates.h"
#include "ir/mesh.h"
#include "ops/communication.h"

namespace stepc {

// By level, the innermost first, up to the level that joins the whole group: the number of the group's ranks within one
// group of that level. A mesh is placed on the devices in order: rank r on device r. A group that does not divide a
// node, or whole nodes, counts as one rank in each node.
std::vector<int64_t> ranks_by_level(const std::vector<Link>& links, const Mesh& mesh, const std::vector<Axis>& axes);

struct Exchange {
  double bytes_seconds = 0;    // transfer time of the bytes
  double latency_seconds = 0;  // of the messages, one after another
  std::string_view algorithm;  // "ring", "tree", "parallel trees", "hierarchical", "direct"
  size_t level = 0;            // of Rates::links: the level that its bytes load most
  bool operator==(const Exchange&) const = default;
};

// `sent`: one collective of that kind, as counted by communication_of(). With n ranks, m of them in each node:
//   ring          all bytes pass the slowest level, whose crossings the m ranks of a node share
//   tree          an all_reduce in twice the logarithm of the ranks' number of messages (Sanders, Speck, Traeff:
//                 Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009)
//   parallel trees  an all_gather or a reduce_scatter in the logarithm of the ranks' number of messages, of
//                 nodes with one rank each (PAT; NCCL 2.23)
//   hierarchical  level by level: between nodes each rank exchanges its own part alone (Cho et al., BlueConnect, 2019)
//   direct        an all_to_all or a rotate: each pair over its own level
// NCCL chooses among these. Without levels (Rates::links) it is a ring, the algorithm of stepc's own ranks.
Exchange exchange(const Rates& rates, const Mesh& mesh, Collective kind, const Communication& sent);

}  // namespace stepc
