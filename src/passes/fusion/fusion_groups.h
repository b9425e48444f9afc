// FusionGroups: the group of each node while fuse() builds groups, and the questions of all its steps: the readers of a
// tensor, through nodes that cost nothing inside a kernel; the possible slots of a set of nodes; whether the set can be
// one kernel. Every group and every node outside has a slot on one line, after everything that it reads and before
// everything that reads it, so no two groups ever wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ir/graph.h"
#include "passes/fusion/fuse.h"

namespace stepc {

enum class Role : uint8_t {
  kOutside,
  kFree,  // costs nothing inside a kernel: every group that reads it computes it again
  kWork,
};

struct FusionGroup {
  std::vector<size_t> nodes;  // ascending, but matmuls first; none: merged into another group
  double slot = 0;
  bool matmuls = false;
};

class FusionGroups {
 public:
  static constexpr size_t kNearby = 64;  // most nodes between readers of the same memory that share a call
  using Nodes = std::set<size_t>;

  // Both arguments must outlive this object. At first no node is in a group.
  FusionGroups(const Graph& graph, KnownGroups& known);

  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] const std::vector<FusionGroup>& groups() const { return groups_; }
  [[nodiscard]] Role role(size_t node) const { return roles_[node]; }
  [[nodiscard]] std::optional<size_t> group_of(size_t node) const { return group_of_[node]; }

  [[nodiscard]] double slot_of(size_t node) const;

  void keep_outside(size_t node) { roles_[node] = Role::kOutside; }
  size_t add();                               // adds a group without nodes
  void set(size_t group, FusionGroup nodes);  // the nodes belong to the group from now on
  void clear(size_t group) { groups_[group] = {}; }

  // ---- what a node reads and who reads it, through free nodes

  [[nodiscard]] std::set<TensorId> read_by(size_t node) const;
  // Adds the nodes that read `tensor` and are not free. Returns whether the graph returns it, or a view of it.
  bool add_readers(TensorId tensor, Nodes& readers) const;
  // Whether anything except the members needs the tensor.
  [[nodiscard]] bool escapes(TensorId tensor, const Nodes& members) const;

  // ---- a set of nodes as one kernel or call

  [[nodiscard]] std::vector<size_t> in_order(const Nodes& members) const;  // matmuls first
  // The members as a graph, in the form that extract_groups() finally gives. None: too large for a kernel.
  [[nodiscard]] std::optional<Graph> as_graph(const Nodes& members) const;
  [[nodiscard]] bool is_kernel(const Nodes& members) const;
  // Elementwise on operands of one shape and on single numbers, so always a kernel.
  [[nodiscard]] bool are_plain(const Nodes& members) const;
  // A slot for the members, `wanted` if that is possible: after everything that they read, before everything that reads
  // them and before host code that changes what they read.
  [[nodiscard]] std::optional<double> find_slot(const Nodes& members, double wanted) const;

 private:
  class GraphOfGroup;

  void find_changes();
  void assign_roles();
  [[nodiscard]] bool only_work_reads(TensorId tensor) const;
  void add_sources(TensorId tensor, std::set<TensorId>& tensors) const;
  [[nodiscard]] bool is_plain(size_t node) const;
  [[nodiscard]] bool reads_view(TensorId tensor) const;  // through what is free

  const Graph& graph_;
  KnownGroups& known_;
  std::vector<Role> roles_;                 // by node
  std::vector<std::vector<size_t>> users_;  // by tensor
  std::vector<bool> returned_;              // by tensor
  std::map<TensorId, size_t> changed_at_;   // by input: the host code that changes its contents
  std::vector<std::optional<size_t>> group_of_;
  std::vector<FusionGroup> groups_;
};

}  // namespace stepc
