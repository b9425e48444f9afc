// exchange(): what a collective takes on the links of a cluster, by the algorithm that takes least there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cost/rates.h"
#include "ir/mesh.h"
#include "ops/communication.h"

namespace stepc {

// How many of a group's ranks stand together within a group of each level, the innermost level first, up to the one
// that holds them all. A mesh lies on the devices in order: rank r on device r. A group that does not divide a node, or
// whole nodes, counts as one rank a node.
std::vector<int64_t> ranks_by_level(const std::vector<Link>& links, const Mesh& mesh, const std::vector<Axis>& axes);

struct Exchange {
  double bytes_seconds = 0;    // for the bytes alone
  double latency_seconds = 0;  // one message after another
  std::string_view algorithm;  // "ring", "tree", "parallel trees", "hierarchical", "direct"
  size_t level = 0;            // of Rates::links: the one that its bytes load most
  bool operator==(const Exchange&) const = default;
};

// `sent`: as communication_of() counts it, of one collective of that kind. Of n ranks, m of them a node:
//   ring          all bytes pass the slowest level, whose crossings the m ranks of a node share
//   tree          an all_reduce in twice the logarithm of the ranks' number of messages (Sanders, Speck, Traeff:
//                 Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009)
//   parallel trees  an all_gather or a reduce_scatter in the logarithm of the ranks' number of messages, of
//                 nodes with one rank each (PAT; NCCL 2.23)
//   hierarchical  level by level: between nodes each rank exchanges its own part alone (Cho et al., BlueConnect, 2019)
//   direct        an all_to_all or a rotate: each pair over its own level
// These are the ones that NCCL chooses among. Without levels (Rates::links) it is a ring, which stepc's own ranks make.
Exchange exchange(const Rates& rates, const Mesh& mesh, Collective kind, const Communication& sent);

}  // namespace stepc
