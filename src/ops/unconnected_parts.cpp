#include "ops/unconnected_parts.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "ops/op_def.h"

namespace stepc {

namespace {

class Parts {
 public:
  Parts(const Graph& graph, const std::vector<NodeId>& nodes)
      : graph_(graph), nodes_(nodes), repeats_(nodes.size()), above_(nodes.size()) {
    std::iota(above_.begin(), above_.end(), size_t{0});
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (TensorId made : node(n).outputs) maker_[made] = n;
      repeats_[n] = !node(n).aten && std::ranges::all_of(node(n).inputs, [&](TensorId input) {
        const auto maker = maker_.find(input);
        return maker == maker_.end() ? element_count(graph_.shape(input)) == 1 : repeats_[maker->second];
      });
    }
  }

  std::vector<std::vector<NodeId>> find() {
    // Numbers alone: what they share connects them too.
    const bool are_numbers = std::ranges::all_of(repeats_, [](bool repeats) { return repeats; });
    if (are_numbers) repeats_.assign(nodes_.size(), false);
    connect(are_numbers);
    std::map<size_t, std::vector<bool>> parts;  // by their first node
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (!repeats_[n]) parts.try_emplace(top_of(n), nodes_.size(), false).first->second[n] = true;
    if (parts.size() < 2) return {nodes_};
    std::vector<std::vector<NodeId>> out;
    for (auto& [first, is_there] : parts) {
      std::vector<NodeId>& part = out.emplace_back();
      for (size_t n = nodes_.size(); n-- > 0;)
        if (is_there[n])
          for (TensorId input : node(n).inputs)
            if (const auto maker = maker_.find(input); maker != maker_.end()) is_there[maker->second] = true;
      for (size_t n = 0; n < nodes_.size(); ++n)
        if (is_there[n]) part.push_back(nodes_[n]);
    }
    return out;
  }

 private:
  [[nodiscard]] const Node& node(size_t n) const { return graph_.nodes[nodes_[n].index()]; }
  size_t top_of(size_t n) {
    while (above_[n] != n) n = above_[n] = above_[above_[n]];
    return n;
  }
  // Two nodes of one part: the part is named by its first.
  void join(size_t a, size_t b) {
    a = top_of(a);
    b = top_of(b);
    above_[std::max(a, b)] = std::min(a, b);
  }
  // `by_numbers`: single values from outside connect too.
  void connect(bool by_numbers) {
    std::map<TensorId, size_t> reader;  // of tensors from outside
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (repeats_[n]) continue;
      for (TensorId input : node(n).inputs) {
        const auto maker = maker_.find(input);
        if (maker != maker_.end() && !repeats_[maker->second]) join(n, maker->second);
        if (maker == maker_.end() && (by_numbers || element_count(graph_.shape(input)) > 1))
          join(n, reader.try_emplace(input, n).first->second);
      }
    }
  }

  const Graph& graph_;
  const std::vector<NodeId>& nodes_;
  std::map<TensorId, size_t> maker_;
  std::vector<bool> repeats_;  // by node: follows from single values alone
  std::vector<size_t> above_;
};

}  // namespace

std::vector<std::vector<NodeId>> unconnected_parts(const Graph& graph, const std::vector<NodeId>& nodes) {
  if (nodes.size() < 2) return {nodes};
  return Parts(graph, nodes).find();
}

std::vector<std::vector<NodeId>> unconnected_parts(const Graph& group) {
  std::vector<NodeId> all;
  for (size_t n = 0; n < group.nodes.size(); ++n) all.emplace_back(n);
  return unconnected_parts(group, all);
}

}  // namespace stepc
