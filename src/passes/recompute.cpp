#include "passes/recompute.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "memory/graph_memory.h"
#include "memory/order/plan_order.h"
#include "ops/op_def.h"
#include "passes/fuse.h"
#include "passes/rewriter.h"

namespace stepc {
namespace {

constexpr double kAnyTime = std::numeric_limits<double>::infinity();
// Nodes one after the other that are made again, views not counted: about one layer of a transformer. Without a limit
// the first tensor of the backward pass would bring the whole forward pass back, all of it live at once.
constexpr uint32_t kLongestChain = 40;
constexpr size_t kLooks = 12;  // counts of choices that are tried before halving

// How readily a node runs twice. Ordered: what is cheap for its bytes comes first.
enum class Kind : uint8_t { kPointwise, kNorm, kAttention, kProduct, kNever };

Kind kind_of(const Node& node) {
  if (node.aten) return Kind::kNever;
  const OpDef& op = op_def(node.op);
  constexpr Trait kCheap[] = {Trait::kElementwise, Trait::kView, Trait::kConstant, Trait::kRandom};
  if (std::ranges::any_of(kCheap, [&](Trait trait) { return op.has(trait); })) return Kind::kPointwise;
  if (op.has(Trait::kReduction) || op.family == "norm") return Kind::kNorm;
  if (op.family == "attention") return Kind::kAttention;
  if (op.family == "matmul") return Kind::kProduct;
  return Kind::kNever;
}

bool is_forward(const Node& node) { return node.source.phase == Phase::kForward; }

// Of the step as it will run: what fuse() keeps inside of kernels needs no memory.
uint64_t planned_peak(const Graph& core, const ProductRule& products) {
  const Graph graph = fuse(core, products);
  const GraphMemory memory = graph_memory(graph);
  return peak_bytes(memory.problem, lowest_peak_order(memory.problem));
}

// Chooses which tensors are made again, one after the other.
class Chooser {
 public:
  Chooser(const Graph& graph, const Target& target)
      : graph_(graph), kept_(graph.tensors.size(), false), again_(graph.nodes.size(), false) {
    for (const Node& node : graph.nodes) seconds_.push_back(seconds_of(graph, node, target));
    for (const Node& node : graph.nodes)
      if (!is_forward(node))
        for (TensorId input : node.inputs) kept_[input.index()] = true;
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) leaves_.push_back(output.tensor);
    std::ranges::sort(leaves_);
  }

  // The tensors that are kept for the backward pass, the best to make again first.
  std::vector<TensorId> candidates() const {
    std::vector<std::tuple<Kind, double, TensorId>> sorted;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Node* node = graph_.producer(TensorId(t));
      if (!kept_[t] || node == nullptr || !is_forward(*node) || kind_of(*node) == Kind::kNever || leaves(TensorId(t)))
        continue;
      const double seconds = seconds_[graph_.tensors[t].producer.index()];
      sorted.emplace_back(kind_of(*node), -bytes(TensorId(t)) / std::max(seconds, 1e-12), TensorId(t));
    }
    std::ranges::sort(sorted);
    std::vector<TensorId> out;
    for (const auto& [kind, rate, tensor] : sorted) out.push_back(tensor);
    return out;
  }

  // Keeps `tensor` no longer, if that saves bytes and all that is made again stays within `most_seconds`. `most` is the
  // dearest kind of node to make again.
  bool choose(TensorId tensor, Kind most, double most_seconds) {
    std::vector<NodeId> chain = {graph_.tensors[tensor.index()].producer};
    std::vector<TensorId> newly_kept;
    for (size_t i = 0; i < chain.size(); ++i) {
      for (TensorId input : graph_.nodes[chain[i].index()].inputs) {
        const NodeId maker = graph_.tensors[input.index()].producer;
        if (!maker.valid() || kept_[input.index()] || again_[maker.index()]) continue;
        if (std::ranges::find(chain, maker) != chain.end()) continue;
        const Node& node = graph_.nodes[maker.index()];
        if (is_forward(node) && kind_of(node) <= most)
          chain.push_back(maker);
        else
          newly_kept.push_back(input);
      }
    }
    std::ranges::sort(newly_kept);
    newly_kept.erase(std::unique(newly_kept.begin(), newly_kept.end()), newly_kept.end());
    double gain = 0;
    for (TensorId output : graph_.nodes[chain[0].index()].outputs)
      if (kept_[output.index()] && !leaves(output)) gain += bytes(output);
    for (TensorId input : newly_kept) gain -= bytes(input);
    double extra = 0;
    for (NodeId node : chain)
      if (!again_[node.index()]) extra += seconds_[node.index()];
    if (gain <= 0 || extra_seconds_ + extra > most_seconds) return false;
    std::vector<bool> before = again_;
    for (NodeId node : chain) again_[node.index()] = true;
    if (longest_chain() > kLongestChain) {
      again_ = std::move(before);
      return false;
    }
    extra_seconds_ += extra;
    for (TensorId output : graph_.nodes[chain[0].index()].outputs) kept_[output.index()] = false;
    for (TensorId input : newly_kept) kept_[input.index()] = true;
    return true;
  }

  [[nodiscard]] const std::vector<bool>& again() const { return again_; }
  [[nodiscard]] double extra_seconds() const { return extra_seconds_; }
  [[nodiscard]] double step_seconds() const {
    double sum = 0;
    for (double seconds : seconds_) sum += seconds;
    return sum;
  }

 private:
  [[nodiscard]] uint32_t longest_chain() {
    depth_.assign(graph_.nodes.size(), 0);
    uint32_t longest = 0;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!again_[n]) continue;
      for (TensorId input : graph_.nodes[n].inputs)
        if (const NodeId maker = graph_.tensors[input.index()].producer; maker.valid())
          depth_[n] = std::max(depth_[n], depth_[maker.index()]);
      if (seconds_[n] > 0) ++depth_[n];
      longest = std::max(longest, depth_[n]);
    }
    return longest;
  }
  [[nodiscard]] double bytes(TensorId tensor) const { return static_cast<double>(bytes_of(graph_.type(tensor))); }
  [[nodiscard]] bool leaves(TensorId tensor) const { return std::ranges::binary_search(leaves_, tensor); }

  const Graph& graph_;
  std::vector<double> seconds_;   // by node
  std::vector<bool> kept_;        // by tensor: the backward pass reads what the forward pass made
  std::vector<bool> again_;       // by node
  std::vector<uint32_t> depth_;   // by node: those that are made again before it, one after the other
  std::vector<TensorId> leaves_;  // outputs of the graph, ascending
  double extra_seconds_ = 0;
};

// The graph in which the nodes of `again` run once more, each before its first use after the forward pass.
class Duplicator {
 public:
  Duplicator(const Graph& graph, const std::vector<bool>& again)
      : graph_(graph), again_(again), rewriter_(graph), copies_(graph.tensors.size()) {}

  Graph run() {
    for (const Node& node : graph_.nodes) {
      if (is_forward(node)) {
        rewriter_.keep(node);
        continue;
      }
      for (TensorId input : node.inputs) make_again(input, node.source);
      rewriter_.replace(node.outputs, copy(node, node.source));
    }
    return rewriter_.finish();
  }
  [[nodiscard]] size_t nodes() const { return nodes_; }

 private:
  [[nodiscard]] TensorId now(TensorId old) const {
    return copies_[old.index()].valid() ? copies_[old.index()] : rewriter_[old];
  }
  std::vector<TensorId> copy(const Node& node, const Source& source) {
    Node made = node;
    for (TensorId& input : made.inputs) input = now(input);
    made.source = source;
    std::vector<TensorType> types;
    for (TensorId output : node.outputs) types.push_back(graph_.type(output));
    Graph& graph = rewriter_.b().graph();
    const NodeId id = graph.add_node(std::move(made), types);
    return graph.nodes[id.index()].outputs;
  }
  // Chains are short (kLongestChain a tensor), but chains of chains are not: a stack of our own.
  void make_again(TensorId tensor, const Source& source) {
    std::vector<NodeId> stack = {graph_.tensors[tensor.index()].producer};
    while (!stack.empty()) {
      const NodeId id = stack.back();
      if (!id.valid() || !again_[id.index()] || copies_[graph_.nodes[id.index()].outputs[0].index()].valid()) {
        stack.pop_back();
        continue;
      }
      const Node& node = graph_.nodes[id.index()];
      const size_t size = stack.size();
      for (TensorId input : node.inputs) {
        const NodeId maker = graph_.tensors[input.index()].producer;
        if (maker.valid() && again_[maker.index()] && !copies_[input.index()].valid()) stack.push_back(maker);
      }
      if (stack.size() > size) continue;
      const std::vector<TensorId> made = copy(node, {source.phase, node.source.module});
      for (size_t k = 0; k < made.size(); ++k) copies_[node.outputs[k].index()] = made[k];
      ++nodes_;
      stack.pop_back();
    }
  }

  const Graph& graph_;
  const std::vector<bool>& again_;
  Rewriter rewriter_;
  std::vector<TensorId> copies_;  // by old tensor: made again
  size_t nodes_ = 0;
};

struct Choice {
  TensorId tensor;
  Kind most = Kind::kPointwise;
};

// What recompute() tries, in order: each kind after all cheaper ones.
std::vector<Choice> choices_of(const Graph& graph, const Target& target) {
  std::vector<Choice> out;
  const Chooser fresh(graph, target);
  const std::vector<TensorId> candidates = fresh.candidates();
  for (Kind most : {Kind::kPointwise, Kind::kNorm, Kind::kAttention, Kind::kProduct})
    for (TensorId tensor : candidates)
      if (kind_of(*graph.producer(tensor)) <= most) out.push_back({tensor, most});
  return out;
}

// The graph after the first `count` choices, without those that would go beyond `most_seconds`.
RecomputeResult after_choices(const Graph& graph, const std::vector<Choice>& choices, size_t count, double most_seconds,
                              const RecomputeOptions& options) {
  Chooser chooser(graph, options.target);
  std::set<TensorId> chosen;
  for (size_t i = 0; i < count; ++i) {
    const auto& [tensor, most] = choices[i];
    if (!chosen.contains(tensor) && chooser.choose(tensor, most, most_seconds)) chosen.insert(tensor);
  }
  Duplicator duplicator(graph, chooser.again());
  RecomputeResult result;
  result.graph = duplicator.run();
  result.nodes = duplicator.nodes();
  result.step_seconds = chooser.step_seconds();
  result.extra_seconds = chooser.extra_seconds();
  result.peak_after = planned_peak(result.graph, options.products);
  return result;
}

}  // namespace

RecomputeResult recompute(Graph graph, const RecomputeOptions& options) {
  RecomputeResult best;
  best.peak_before = best.peak_after = planned_peak(graph, options.products);
  best.step_seconds = Chooser(graph, options.target).step_seconds();
  const uint64_t budget = options.budget_bytes.value_or(0);
  const double most_seconds = options.budget_bytes ? kAnyTime : options.most_extra * best.step_seconds;
  const std::vector<Choice> choices = choices_of(graph, options.target);
  // Whether so many choices meet the budget. The cheapest that do stay in `best`, or else the lowest peak.
  const auto meets_budget = [&](size_t count) {
    RecomputeResult some = after_choices(graph, choices, count, most_seconds, options);
    some.peak_before = best.peak_before;
    const bool meets = some.peak_after <= budget;
    const bool better = best.peak_after <= budget ? meets && some.extra_seconds < best.extra_seconds
                                                  : some.peak_after < best.peak_after;
    if (better) best = std::move(some);
    return meets;
  };
  // More is not always less: what is made again is live too. So first a look at some counts; then, between the first
  // that meets the budget and the one before it, halving.
  size_t low = 0;
  size_t high = 0;
  for (size_t look = 1; look <= kLooks && high == 0 && best.peak_after > budget; ++look) {
    const size_t count = choices.size() * look / kLooks;
    (meets_budget(count) ? high : low) = count;
  }
  while (low + 1 < high) {
    const size_t middle = low + (high - low) / 2;
    (meets_budget(middle) ? high : low) = middle;
  }
  if (options.budget_bytes && best.peak_after > budget)
    best.why_not = str("the lowest peak that recomputation reaches is {}, and the budget is {}",
                       human_bytes(best.peak_after), human_bytes(budget));
  if (best.nodes == 0) best.graph = std::move(graph);
  return best;
}

}  // namespace stepc
