#include "memory/order/cut_bound.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace stepc {
namespace {

constexpr int64_t kUnbreakable = int64_t{1} << 60;

// Dinic's maximum flow.
class Network {
 public:
  explicit Network(size_t nodes) : first_(nodes, kNone), level_(nodes), next_(nodes) {}

  void add(uint32_t from, uint32_t to, int64_t capacity) {
    edges_.push_back({to, first_[from], capacity});
    first_[from] = static_cast<uint32_t>(edges_.size() - 1);
    edges_.push_back({from, first_[to], 0});
    first_[to] = static_cast<uint32_t>(edges_.size() - 1);
  }

  int64_t flow(uint32_t source, uint32_t sink) {
    int64_t total = 0;
    while (find_levels(source, sink)) {
      next_ = first_;
      while (const int64_t pushed = push(source, sink)) total += pushed;
    }
    return total;
  }

 private:
  struct Edge {
    uint32_t to;
    uint32_t next;  // of the same node
    int64_t left;
  };

  bool find_levels(uint32_t source, uint32_t sink) {
    std::fill(level_.begin(), level_.end(), kNone);
    level_[source] = 0;
    queue_ = {source};
    for (size_t i = 0; i < queue_.size() && level_[sink] == kNone; ++i) {
      const uint32_t node = queue_[i];
      for (uint32_t e = first_[node]; e != kNone; e = edges_[e].next) {
        if (edges_[e].left == 0 || level_[edges_[e].to] != kNone) continue;
        level_[edges_[e].to] = level_[node] + 1;
        queue_.push_back(edges_[e].to);
      }
    }
    return level_[sink] != kNone;
  }

  // One path from the source along rising levels; what it carries.
  int64_t push(uint32_t source, uint32_t sink) {
    path_.clear();
    for (uint32_t node = source;;) {
      if (node == sink) break;
      uint32_t& e = next_[node];
      while (e != kNone && (edges_[e].left == 0 || level_[edges_[e].to] != level_[node] + 1)) e = edges_[e].next;
      if (e != kNone) {
        path_.push_back(e);
        node = edges_[e].to;
        continue;
      }
      if (node == source) return 0;
      level_[node] = kNone;  // a dead end
      node = edges_[path_.back() ^ 1].to;
      path_.pop_back();
    }
    int64_t least = kUnbreakable;
    for (uint32_t e : path_) least = std::min(least, edges_[e].left);
    for (uint32_t e : path_) {
      edges_[e].left -= least;
      edges_[e ^ 1].left += least;
    }
    return least;
  }

  std::vector<Edge> edges_;  // each with its reverse beside it
  std::vector<uint32_t> first_;
  std::vector<uint32_t> level_;
  std::vector<uint32_t> next_;
  std::vector<uint32_t> queue_;
  std::vector<uint32_t> path_;
};

// What the unit makes at least, whatever it takes over.
int64_t least_rise(const OrderProblem& problem, uint32_t unit) {
  const OrderUnit& one = problem.units[unit];
  auto rise = static_cast<int64_t>(one.workspace_bytes);
  std::vector<uint32_t> operands, results;
  for (const auto& [operand, result] : one.reuses) {
    if (problem.values[operand].kept) continue;
    operands.push_back(operand);
    results.push_back(result);
  }
  const auto bytes = [&](std::vector<uint32_t> values) {
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    int64_t sum = 0;
    for (uint32_t value : values) sum += static_cast<int64_t>(problem.values[value].bytes);
    return sum;
  };
  return rise + bytes(one.makes) - std::min(bytes(operands), bytes(results));
}

}  // namespace

uint64_t cut_bound(const OrderProblem& problem, uint32_t unit) {
  const auto units = static_cast<uint32_t>(problem.units.size());
  const auto values = static_cast<uint32_t>(problem.values.size());
  const uint32_t source = units + values;
  const uint32_t sink = source + 1;
  Network network(units + values + 2);
  const auto before = predecessors(problem);
  for (uint32_t u = 0; u < units; ++u)
    for (uint32_t earlier : before[u]) network.add(u, earlier, kUnbreakable);
  for (uint32_t v = 0; v < values; ++v) {
    const OrderValue& value = problem.values[v];
    if (value.bytes == 0) continue;
    const uint32_t from = value.producer == kNone ? source : value.producer;
    if (value.kept) {
      network.add(from, sink, static_cast<int64_t>(value.bytes));
      continue;
    }
    network.add(from, units + v, static_cast<int64_t>(value.bytes));
    for (uint32_t user : value.users) network.add(units + v, user, kUnbreakable);
  }
  for (uint32_t earlier : before[unit]) network.add(source, earlier, kUnbreakable);
  network.add(unit, sink, kUnbreakable);
  return static_cast<uint64_t>(network.flow(source, sink) + least_rise(problem, unit));
}

}  // namespace stepc
