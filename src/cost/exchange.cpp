#include "cost/exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stepc {

namespace {

// One level as a group of ranks meets it.
struct Level {
  const Link* link;
  double within;  // ranks of the group together on this level
  double below;   // on the one below
  [[nodiscard]] double branches() const { return within / below; }
};

// Of one level after another; `most`: what the one that takes longest does.
void add_bytes(Exchange& out, size_t level, double seconds, double& most) {
  out.bytes_seconds += seconds;
  if (seconds <= most) return;
  most = seconds;
  out.level = level;
}

Exchange ring(const std::vector<Level>& levels, const Communication& sent, double passes) {
  Exchange out{0, 0, "ring"};
  const double ranks = levels.back().within;
  double rate = levels.front().link->bytes_per_second;
  for (size_t l = 0; l < levels.size(); ++l) {
    const Level& level = levels[l];
    if (const double own = level.below * level.link->bytes_per_second; level.branches() > 1 && own <= rate) {
      rate = own;
      out.level = l;
    }
    // Of the hops around, those that cross this level and none above it.
    const double hops = ranks / level.below - ranks / level.within;
    out.latency_seconds += passes * hops * level.link->latency_seconds;
  }
  out.bytes_seconds = sent.bytes / rate;
  return out;
}

Exchange tree(const std::vector<Level>& levels, const Communication& sent) {
  Exchange out = ring(levels, sent, 2);
  const double ranks = levels.back().within;
  out.algorithm = "tree";
  out.bytes_seconds *= ranks / (ranks - 1);  // nobody keeps a part
  out.latency_seconds = 0;
  for (const Level& level : levels)
    out.latency_seconds += 2 * std::ceil(std::log2(level.branches())) * level.link->latency_seconds;
  return out;
}

// Where no two ranks share a node.
Exchange parallel_trees(const std::vector<Level>& levels, const Communication& sent) {
  Exchange out = ring(levels, sent, 1);
  out.algorithm = "parallel trees";
  out.latency_seconds = 0;
  for (const Level& level : levels)
    out.latency_seconds += std::ceil(std::log2(level.branches())) * level.link->latency_seconds;
  return out;
}

Exchange hierarchical(const std::vector<Level>& levels, const Communication& sent, double passes) {
  Exchange out{0, 0, "hierarchical"};
  const double ranks = levels.back().within;
  const double whole = sent.bytes * ranks / (ranks - 1);  // of all passes
  double most = 0;
  for (size_t l = 0; l < levels.size(); ++l) {
    const Level& level = levels[l];
    const double peers = level.branches() - 1;
    add_bytes(out, l, peers * whole / level.within / level.link->bytes_per_second, most);
    out.latency_seconds += passes * peers * level.link->latency_seconds;
  }
  return out;
}

Exchange direct(const std::vector<Level>& levels, const Communication& sent) {
  Exchange out{0, 0, "direct"};
  const double peers = levels.back().within - 1;
  double most = 0;
  for (size_t l = 0; l < levels.size(); ++l) {
    const Level& level = levels[l];
    const double share = (level.within - level.below) / peers;
    add_bytes(out, l, share * sent.bytes / level.link->bytes_per_second, most);
    out.latency_seconds += share * sent.hops * level.link->latency_seconds;
  }
  return out;
}

// To the next rank: all wait for the pair that is farthest apart.
Exchange rotate(const std::vector<Level>& levels, const Communication& sent) {
  Exchange out{0, 0, "direct"};
  for (size_t l = 0; l < levels.size(); ++l) {
    const Level& level = levels[l];
    if (level.branches() <= 1) continue;
    if (const double seconds = sent.bytes / level.link->bytes_per_second; seconds > out.bytes_seconds) {
      out.bytes_seconds = seconds;
      out.level = l;
    }
    out.latency_seconds = std::max(out.latency_seconds, sent.hops * level.link->latency_seconds);
  }
  return out;
}

}  // namespace

std::vector<int64_t> ranks_by_level(const std::vector<Link>& links, const Mesh& mesh, const std::vector<Axis>& axes) {
  std::vector<int64_t> strides(mesh.axes.size(), 1);
  for (size_t a = mesh.axes.size(); a-- > 1;) strides[a - 1] = strides[a] * mesh.axes[a].size;
  const int64_t ranks = mesh.size(axes);
  std::vector<int64_t> out;
  int64_t below = 1;
  for (const Link& link : links) {
    int64_t within = ranks;
    if (&link != &links.back() && link.devices > 0) {
      within = 1;
      bool is_even = true;
      for (Axis axis : axes) {
        if (strides[axis] >= link.devices) continue;  // each of its ranks in a group of its own
        const int64_t room = link.devices / strides[axis], size = mesh.size(axis);
        is_even = is_even && link.devices % strides[axis] == 0 && (room % size == 0 || size % room == 0);
        within *= std::min(room, size);
      }
      if (!is_even || within % below != 0) within = below;
    }
    out.push_back(within);
    below = within;
    if (within == ranks) break;
  }
  return out;
}

Exchange exchange(const Rates& rates, const Mesh& mesh, Collective kind, const Communication& sent) {
  const std::vector<Link>& links = rates.links;
  if (links.empty()) return {sent.bytes / rates.link_bytes_per_second, sent.hops * rates.link_latency_seconds, "ring"};
  const std::vector<int64_t> ranks = ranks_by_level(links, mesh, sent.axes);
  std::vector<Level> levels;
  double below = 1;
  for (size_t l = 0; l < ranks.size(); ++l) {
    levels.push_back({&links[l], static_cast<double>(ranks[l]), below});
    below = levels.back().within;
  }
  if (below <= 1) return {0, 0, "direct"};
  switch (kind) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter: {
      const bool is_twice = kind == Collective::kAllReduce;
      std::vector<Exchange> ways = {ring(levels, sent, is_twice ? 2 : 1)};
      if (is_twice) ways.push_back(tree(levels, sent));
      if (!is_twice && levels.front().within == 1) ways.push_back(parallel_trees(levels, sent));
      if (levels.size() > 1) ways.push_back(hierarchical(levels, sent, is_twice ? 2 : 1));
      return *std::ranges::min_element(ways, {},
                                       [](const Exchange& one) { return one.bytes_seconds + one.latency_seconds; });
    }
    case Collective::kRotate:
      return rotate(levels, sent);
    default:
      return direct(levels, sent);
  }
}

}  // namespace stepc
