#include "passes/fusion/fuse_side_by_side.h"

#include <algorithm>

#include "ops/op_def.h"

namespace stepc {

namespace {

// Pointers are a kernel's parameters, which have 4 KiB on every GPU and driver.
constexpr size_t kMostPointers = 480;

class SideBySide {
 public:
  explicit SideBySide(FusionGroups& groups) : groups_(groups), graph_(groups.graph()) {}

  void run() {
    std::map<size_t, std::vector<size_t>> waiting;  // groups, by the node that makes the number
    std::vector<size_t> of_numbers;
    for (size_t g = 0; g < groups_.groups().size(); ++g) {
      if (!is_update(groups_.groups()[g])) continue;
      if (const auto number = waits_for(g))
        waiting[*number].push_back(g);
      else if (makes_numbers(g))
        of_numbers.push_back(g);
    }
    for (const auto& [number, all] : waiting) join(all);
    join(of_numbers);
  }

 private:
  [[nodiscard]] bool is_update(const FusionGroup& group) const {
    return !group.nodes.empty() && !group.matmuls &&
           std::ranges::all_of(group.nodes, [&](size_t n) { return graph_.nodes[n].source.phase == Phase::kUpdate; });
  }
  [[nodiscard]] bool is_number(TensorId tensor) const { return element_count(graph_.shape(tensor)) == 1; }

  // What a group reads of others, and what others need of it.
  [[nodiscard]] std::set<TensorId> reads(const FusionGroups::Nodes& members) const {
    std::set<TensorId> out;
    for (size_t member : members) out.merge(groups_.read_by(member));
    std::erase_if(out, [&](TensorId tensor) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      return producer.valid() && members.contains(producer.index());
    });
    return out;
  }
  [[nodiscard]] size_t tensors(const FusionGroups::Nodes& members) const {
    size_t count = reads(members).size();
    for (size_t member : members)
      for (TensorId made : graph_.nodes[member].outputs)
        if (groups_.escapes(made, members)) ++count;
    return count;
  }
  [[nodiscard]] FusionGroups::Nodes members_of(size_t group) const {
    const std::vector<size_t>& nodes = groups_.groups()[group].nodes;
    return {nodes.begin(), nodes.end()};
  }

  // The node whose number the group waits for; nullopt: none from which all that is large follows.
  std::optional<size_t> waits_for(size_t group) {
    std::vector<size_t> large, numbers;  // nodes that make what it reads
    for (TensorId tensor : reads(members_of(group)))
      if (const NodeId producer = graph_.tensors[tensor.index()].producer; producer.valid())
        (is_number(tensor) ? numbers : large).push_back(producer.index());
    if (large.empty()) return std::nullopt;
    for (size_t number : numbers) {
      const std::vector<bool>& needed = needed_by(number);
      if (std::ranges::all_of(large, [&](size_t node) { return needed[node]; })) return number;
    }
    return std::nullopt;
  }
  // By node: whether `node` follows from it.
  const std::vector<bool>& needed_by(size_t node) {
    const auto [found, is_new] = needed_.try_emplace(node, graph_.nodes.size(), false);
    std::vector<bool>& needed = found->second;
    if (!is_new) return needed;
    needed[node] = true;
    for (size_t n = node + 1; n-- > 0;) {
      if (!needed[n]) continue;
      for (TensorId input : graph_.nodes[n].inputs)
        if (const NodeId producer = graph_.tensors[input.index()].producer; producer.valid())
          needed[producer.index()] = true;
    }
    return needed;
  }

  [[nodiscard]] bool makes_numbers(size_t group) const {
    const FusionGroups::Nodes members = members_of(group);
    const auto makes_one = [&](size_t n) { return is_number(graph_.nodes[n].outputs[0]); };
    const auto is_there = [&](TensorId tensor) {
      return is_number(tensor) && !graph_.tensors[tensor.index()].producer.valid();
    };
    return std::ranges::all_of(members, makes_one) && std::ranges::all_of(reads(members), is_there);
  }

  // As many as fit, one group after the other.
  void join(const std::vector<size_t>& all) {
    FusionGroups::Nodes members;
    std::vector<size_t> joined;
    double slot = 0;
    const auto finish = [&] {
      if (joined.size() > 1) {
        for (size_t group : joined) groups_.clear(group);
        groups_.set(joined.front(), {{members.begin(), members.end()}, slot});
      }
      members.clear();
      joined.clear();
    };
    for (size_t group : all) {
      const FusionGroups::Nodes own = members_of(group);
      FusionGroups::Nodes both = members;
      both.insert(own.begin(), own.end());
      const std::optional<double> place = groups_.find_slot(both, groups_.groups()[group].slot);
      if (!place || is_read(own, members) || is_read(members, own) || tensors(both) > kMostPointers) {
        finish();
        both = own;
        slot = groups_.groups()[group].slot;
      } else {
        slot = *place;
      }
      members = std::move(both);
      joined.push_back(group);
    }
    finish();
  }
  [[nodiscard]] bool is_read(const FusionGroups::Nodes& made, const FusionGroups::Nodes& readers) const {
    return std::ranges::any_of(reads(readers), [&](TensorId tensor) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      return producer.valid() && made.contains(producer.index());
    });
  }

  FusionGroups& groups_;
  const Graph& graph_;
  std::map<size_t, std::vector<bool>> needed_;
};

}  // namespace

void fuse_side_by_side(FusionGroups& groups) { SideBySide(groups).run(); }

}  // namespace stepc
