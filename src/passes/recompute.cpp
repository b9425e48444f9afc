#include "passes/recompute.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "memory/graph_memory.h"
#include "memory/graph_windows.h"
#include "memory/order/plan_order.h"
#include "ops/op_def.h"
#include "passes/fusion/fuse.h"
#include "passes/rewriter.h"

namespace stepc {
namespace {

constexpr double kAnyTime = std::numeric_limits<double>::infinity();
// Nodes one after the other that are recomputed, views not counted: about one layer of a transformer. Without a limit
// the first tensor of the backward pass would bring the whole forward pass back, all of it live at once.
constexpr uint32_t kLongestChain = 40;
constexpr size_t kLooks = 6;      // counts of choices that are tried before halving
constexpr size_t kFineness = 32;  // halving ends when counts differ by less than this part of all choices
constexpr size_t kNever = SIZE_MAX;

// How readily a node runs twice. Ordered: what is cheap for its bytes comes first.
enum class Kind : uint8_t { kPointwise, kNorm, kOwnKernel, kContraction, kExchange, kNever };

Kind kind_of(const Node& node) {
  if (node.aten) return Kind::kNever;
  if (collective_of(node) != Collective::kNone) {
    constexpr Collective kRepeatable[] = {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce};
    return std::ranges::find(kRepeatable, collective_of(node)) != std::end(kRepeatable) ? Kind::kExchange
                                                                                        : Kind::kNever;
  }
  const OpDef& op = op_def(node.op);
  constexpr Trait kCheap[] = {Trait::kElementwise, Trait::kView, Trait::kConstant, Trait::kRandom};
  if (std::ranges::any_of(kCheap, [&](Trait trait) { return op.has(trait); })) return Kind::kPointwise;
  if (op.has(Trait::kReduction) || !op.is_core()) return Kind::kNorm;
  if (op.has(Trait::kRecomputes)) return Kind::kOwnKernel;
  if (op.has(Trait::kContraction)) return Kind::kContraction;
  return Kind::kNever;
}

bool is_forward(const Node& node) { return node.source.phase == Phase::kForward; }

// By node: for an exchange of the forward pass that the backward pass makes again, of the same tensors (zero 3 gathers
// a parameter in both passes), that second exchange. It gives the same values, so what is recomputed reads it instead
// of the first, and nothing is sent a third time. Invalid for every other node.
std::vector<NodeId> repeated_exchanges(const Graph& graph) {
  const auto key = [](const Node& node) { return std::tuple(node.op, to_text(node.attrs), node.inputs); };
  std::map<std::tuple<std::string, std::string, std::vector<TensorId>>, NodeId> firsts;
  std::vector<NodeId> again(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (collective_of(node) == Collective::kNone) continue;
    if (is_forward(node)) {
      firsts.emplace(key(node), NodeId(n));
    } else if (const auto first = firsts.find(key(node)); first != firsts.end()) {
      again[first->second.index()] = NodeId(n);
      firsts.erase(first);
    }
  }
  return again;
}

// Of the step as it will run: what fuse() keeps inside of kernels needs no memory, a view that is copied does.
struct Planned {
  std::vector<NodeId> made_of;  // by node of the fused graph: of the core graph
  Graph fused;
  GraphMemory memory;
};
Planned planned_of(const Graph& core, const MatmulRule& matmuls, KnownGroups& known) {
  Planned planned;
  planned.fused = fuse(core, matmuls, known, &planned.made_of);
  planned.memory = graph_memory(planned.fused, {.copied_views = graph_windows(planned.fused).copied_views});
  return planned;
}

// What layers make in the forward pass and the backward pass reads, by node of the core graph that makes it.
using KeptBytes = std::map<NodeId, uint64_t>;
KeptBytes kept_by_layers(const Planned& planned) {
  const GraphMemory& memory = planned.memory;
  const auto node_of = [&](uint32_t unit) { return planned.fused.nodes[memory.nodes_of[unit].front().index()]; };
  KeptBytes kept;
  for (size_t v = 0; v < memory.problem.values.size(); ++v) {
    const OrderValue& value = memory.problem.values[v];
    if (value.bytes == 0 || value.producer == kNone) continue;
    const NodeId maker = planned.fused.tensors[memory.tensor_of[v].index()].producer;
    const Source& source = planned.fused.nodes[maker.index()].source;
    if (source.phase == Phase::kForward && is_of_a_layer(source) &&
        std::ranges::any_of(value.users, [&](uint32_t user) { return node_of(user).source.phase == Phase::kBackward; }))
      kept[planned.made_of[maker.index()]] += value.bytes;
  }
  return kept;
}
uint64_t times(double more_layers, const KeptBytes& kept) {
  double bytes = 0;
  for (const auto& [node, of_node] : kept) bytes += static_cast<double>(of_node);
  return static_cast<uint64_t>(more_layers * bytes);
}

// The peak of an order, and what lies idle there: the forward pass is done with it, the backward pass has not begun.
// Only if that is recomputed the peak falls.
struct IdleAtPeak {
  uint64_t peak_bytes = 0;
  std::map<NodeId, uint64_t> idle_bytes;  // by node of the core graph that makes it
};
IdleAtPeak idle_at_peak(const Planned& planned, const UnitOrder& order) {
  const GraphMemory& memory = planned.memory;
  std::vector<size_t> place_of(order.size());
  for (size_t i = 0; i < order.size(); ++i) place_of[order[i]] = i;
  const OrderPeak peak = peak_of(memory.problem, order);
  const auto is_before = [&](uint32_t unit) { return place_of[unit] < place_of[peak.unit]; };
  IdleAtPeak idle{peak.bytes, {}};
  for (size_t v = 0; v < memory.problem.values.size(); ++v) {
    const OrderValue& value = memory.problem.values[v];
    if (value.bytes == 0 || value.producer == kNone || !is_before(value.producer)) continue;
    bool is_live = value.kept;
    bool is_used = false;
    for (uint32_t user : value.users) {
      const bool is_over = is_before(user);
      is_live |= !is_over;
      is_used |= is_over != is_forward(planned.fused.nodes[memory.nodes_of[user].front().index()]) || user == peak.unit;
    }
    const NodeId maker = planned.fused.tensors[memory.tensor_of[v].index()].producer;
    if (is_live && !is_used) idle.idle_bytes[planned.made_of[maker.index()]] += value.bytes;
  }
  return idle;
}

// Chooses which tensors are recomputed, one after the other.
class Chooser {
 public:
  Chooser(const Graph& graph, const RecomputeOptions& options)
      : graph_(graph),
        never_(options.never),
        again_(repeated_exchanges(graph)),
        kept_(graph.tensors.size(), false),
        since_(graph.nodes.size(), kNever),
        depth_(graph.nodes.size(), 0),
        users_(graph.tensors.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      seconds_.push_back(again_[n].valid() ? 0 : seconds_of(graph, graph.nodes[n], options.target));
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (TensorId input : graph.nodes[n].inputs) users_[input.index()].push_back(n);
    for (const Node& node : graph.nodes)
      if (!is_forward(node))
        for (TensorId input : node.inputs) kept_[input.index()] = true;
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) leaves_.push_back(output.tensor);
    std::ranges::sort(leaves_);
  }

  // Takes whatever choice saves bytes and keeps all that is recomputed within `most_seconds`: each kind after all
  // cheaper ones, up to `dearest`.
  void choose_all(double most_seconds, Kind dearest) {
    const std::vector<TensorId> tensors = candidates();
    std::set<TensorId> chosen;
    for (Kind most : {Kind::kPointwise, Kind::kNorm, Kind::kOwnKernel, Kind::kContraction, Kind::kExchange})
      if (most <= dearest)
        for (TensorId tensor : tensors)
          if (kind_at(producer_of(tensor)) <= most && !chosen.contains(tensor) && choose(tensor, most, most_seconds))
            chosen.insert(tensor);
  }

  // How many choices were taken; the nodes that are recomputed after the first `count` of them, and their time.
  [[nodiscard]] size_t taken() const { return extra_seconds_.size() - 1; }
  [[nodiscard]] std::vector<bool> recomputed_after(size_t count) const {
    std::vector<bool> recomputed;
    for (size_t since : since_) recomputed.push_back(since < count);
    return recomputed;
  }
  [[nodiscard]] double extra_seconds_after(size_t count) const { return extra_seconds_[count]; }
  [[nodiscard]] bool is_recomputed_after(size_t count, NodeId node) const { return since_[node.index()] < count; }
  [[nodiscard]] double step_seconds() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }

 private:
  // The tensors that are kept for the backward pass, the best to recompute first.
  [[nodiscard]] std::vector<TensorId> candidates() const {
    std::vector<std::tuple<Kind, double, TensorId>> sorted;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const NodeId maker = producer_of(TensorId(t));
      if (!kept_[t] || !maker.valid() || !is_forward(graph_.nodes[maker.index()]) || kind_at(maker) == Kind::kNever ||
          leaves(TensorId(t)))
        continue;
      const double seconds = seconds_[maker.index()];
      sorted.emplace_back(kind_at(maker), -bytes(TensorId(t)) / std::max(seconds, 1e-12), TensorId(t));
    }
    std::ranges::sort(sorted);
    std::vector<TensorId> out;
    for (const auto& [kind, rate, tensor] : sorted) out.push_back(tensor);
    return out;
  }

  // Keeps `tensor` no longer, if that saves bytes and all that is recomputed stays within `most_seconds`. `most` is the
  // dearest kind of node to recompute.
  bool choose(TensorId tensor, Kind most, double most_seconds) {
    std::vector<NodeId> chain = {graph_.tensors[tensor.index()].producer};
    std::vector<TensorId> newly_kept;
    for (size_t i = 0; i < chain.size(); ++i) {
      for (TensorId input : graph_.nodes[chain[i].index()].inputs) {
        const NodeId maker = graph_.tensors[input.index()].producer;
        if (!maker.valid() || kept_[input.index()] || is_recomputed(maker)) continue;
        if (std::ranges::find(chain, maker) != chain.end()) continue;
        if (is_forward(graph_.nodes[maker.index()]) && kind_at(maker) <= most)
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
      if (!is_recomputed(node)) extra += seconds_[node.index()];
    if (gain <= 0 || extra_seconds_.back() + extra > most_seconds || !add_chain(chain)) return false;
    extra_seconds_.push_back(extra_seconds_.back() + extra);
    for (TensorId output : graph_.nodes[chain[0].index()].outputs) kept_[output.index()] = false;
    for (TensorId input : newly_kept) kept_[input.index()] = true;
    return true;
  }

  [[nodiscard]] bool is_recomputed(NodeId node) const { return since_[node.index()] != kNever; }
  // False, and nothing is changed, where nodes would then be recomputed in too long a chain.
  bool add_chain(const std::vector<NodeId>& chain) {
    std::vector<NodeId> added;
    for (NodeId node : chain) {
      if (is_recomputed(node)) continue;
      since_[node.index()] = taken();
      added.push_back(node);
    }
    std::set<size_t> open;  // whose depth may have changed
    for (NodeId node : added) open.insert(node.index());
    std::vector<std::pair<size_t, uint32_t>> before;
    while (!open.empty()) {
      const size_t n = *open.begin();
      open.erase(open.begin());
      const uint32_t depth = depth_of(n);
      if (depth == depth_[n]) continue;
      before.emplace_back(n, depth_[n]);
      depth_[n] = depth;
      if (depth > kLongestChain) {
        for (size_t i = before.size(); i-- > 0;) depth_[before[i].first] = before[i].second;
        for (NodeId node : added) since_[node.index()] = kNever;
        return false;
      }
      for (TensorId output : graph_.nodes[n].outputs)
        for (size_t user : users_[output.index()])
          if (since_[user] != kNever) open.insert(user);
    }
    return true;
  }
  [[nodiscard]] uint32_t depth_of(size_t node) const {
    uint32_t depth = 0;
    for (TensorId input : graph_.nodes[node].inputs)
      if (const NodeId maker = graph_.tensors[input.index()].producer; maker.valid())
        depth = std::max(depth, depth_[maker.index()]);
    return depth + (seconds_[node] > 0 ? 1 : 0);
  }
  [[nodiscard]] NodeId producer_of(TensorId tensor) const { return graph_.tensors[tensor.index()].producer; }
  [[nodiscard]] Kind kind_at(NodeId node) const {
    if (!never_.empty() && never_[node.index()]) return Kind::kNever;
    return again_[node.index()].valid() ? Kind::kPointwise : kind_of(graph_.nodes[node.index()]);
  }
  [[nodiscard]] double bytes(TensorId tensor) const { return static_cast<double>(bytes_of(graph_.type(tensor))); }
  [[nodiscard]] bool leaves(TensorId tensor) const { return std::ranges::binary_search(leaves_, tensor); }

  const Graph& graph_;
  const std::vector<bool>& never_;           // by node
  std::vector<NodeId> again_;                // by node: repeated_exchanges()
  std::vector<double> seconds_;              // by node
  std::vector<bool> kept_;                   // by tensor: the backward pass reads what the forward pass made
  std::vector<size_t> since_;                // by node: with which choice it came to be recomputed
  std::vector<uint32_t> depth_;              // by node: those that are recomputed before it, one after the other
  std::vector<std::vector<size_t>> users_;   // by tensor: nodes
  std::vector<TensorId> leaves_;             // outputs of the graph, ascending
  std::vector<double> extra_seconds_ = {0};  // after each choice
};

// The graph in which the `recomputed` nodes run once more, each before its first use after the forward pass. An
// exchange that the backward pass makes again anyway is moved there instead.
class Duplicator {
 public:
  Duplicator(const Graph& graph, const std::vector<bool>& recomputed)
      : graph_(graph),
        recomputed_(recomputed),
        rewriter_(graph),
        copies_(graph.tensors.size()),
        first_(graph.nodes.size()) {
    const std::vector<NodeId> again = repeated_exchanges(graph);
    for (size_t n = 0; n < again.size(); ++n)
      if (again[n].valid() && recomputed[n]) first_[again[n].index()] = NodeId(n);
  }

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (is_forward(node)) {
        rewriter_.keep(node);
        continue;
      }
      if (first_[n].valid()) {
        rewriter_.replace(node.outputs, copies_of(first_[n], node.source));
        continue;
      }
      for (TensorId input : node.inputs) duplicate(input, node.source);
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
  // Of a recomputed node.
  std::vector<TensorId> copies_of(NodeId id, const Source& source) {
    std::vector<TensorId> copies;
    for (TensorId output : graph_.nodes[id.index()].outputs) {
      duplicate(output, source);
      copies.push_back(copies_[output.index()]);
    }
    return copies;
  }
  // Chains are short (kLongestChain a tensor), but chains of chains are not: a stack of our own.
  void duplicate(TensorId tensor, const Source& source) {
    std::vector<NodeId> stack = {graph_.tensors[tensor.index()].producer};
    while (!stack.empty()) {
      const NodeId id = stack.back();
      if (!id.valid() || !recomputed_[id.index()] || copies_[graph_.nodes[id.index()].outputs[0].index()].valid()) {
        stack.pop_back();
        continue;
      }
      const Node& node = graph_.nodes[id.index()];
      const size_t size = stack.size();
      for (TensorId input : node.inputs) {
        const NodeId maker = graph_.tensors[input.index()].producer;
        if (maker.valid() && recomputed_[maker.index()] && !copies_[input.index()].valid()) stack.push_back(maker);
      }
      if (stack.size() > size) continue;
      const std::vector<TensorId> made = copy(node, {source.phase, node.source.module});
      for (size_t k = 0; k < made.size(); ++k) copies_[node.outputs[k].index()] = made[k];
      if (collective_of(node) == Collective::kNone) ++nodes_;
      stack.pop_back();
    }
  }

  const Graph& graph_;
  const std::vector<bool>& recomputed_;
  Rewriter rewriter_;
  std::vector<TensorId> copies_;  // by old tensor: recomputed
  std::vector<NodeId> first_;     // by node: of an exchange that is moved, the one of the forward pass
  size_t nodes_ = 0;
};

uint64_t less(uint64_t budget, uint64_t bytes) { return budget - std::min(budget, bytes); }

// One count of choices, looked at.
struct Look {
  size_t count = 0;
  Graph graph;
  size_t nodes = 0;
  OrderProblem problem;
  uint64_t unseen_bytes = 0;  // that the layers keep which the graph stands for
  uint64_t peak_bytes = 0;    // with these, of the orders that are quick to find
};

// What is there before anything is recomputed.
struct Baseline {
  OrderProblem problem;
  KeptBytes kept;             // by layers
  uint64_t unseen_bytes = 0;  // as in Look
  uint64_t peak_bytes = 0;    // as in Look
  // Of the best of them, and of program order, where the backward pass runs behind the forward.
  std::array<IdleAtPeak, 2> peaks;
};

}  // namespace

// What is the same for every budget: of one graph and rule, the step as it is, and each count of choices by what it was
// limited to.
struct RecomputeLooks::Known {
  Graph graph;
  MatmulRule matmuls;
  std::vector<bool> never;
  double more_layers = 0;
  std::shared_ptr<KnownGroups> groups;
  std::optional<Planned> plain;
  std::map<std::pair<double, size_t>, Look> looks;  // by the most seconds, and the count
};

RecomputeLooks::RecomputeLooks() = default;
RecomputeLooks::~RecomputeLooks() = default;

// The looks at one graph: those of before, if they are at the same.
class LooksOf {
 public:
  // `graph` outlives it.
  LooksOf(const Graph& graph, const RecomputeOptions& options) : graph_(graph), keeps_(options.looks != nullptr) {
    RecomputeLooks& looks = keeps_ ? *options.looks : own_;
    if (looks.known_ == nullptr || looks.known_->graph != graph || looks.known_->matmuls != options.matmuls ||
        looks.known_->never != options.never || looks.known_->more_layers != options.more_layers) {
      looks.known_ = std::make_unique<RecomputeLooks::Known>();
      if (keeps_) looks.known_->graph = graph;
      looks.known_->never = options.never;
      looks.known_->matmuls = options.matmuls;
      looks.known_->more_layers = options.more_layers;
      looks.known_->groups = options.groups ? options.groups : std::make_shared<KnownGroups>();
    }
    known_ = looks.known_.get();
  }

  // Nothing recomputed.
  const Planned& plain() {
    if (!known_->plain) known_->plain = planned_of(graph_, known_->matmuls, *known_->groups);
    return *known_->plain;
  }

  Look at(const Chooser& chooser, double most_seconds, size_t count, uint64_t budget, double more_layers) {
    const std::pair key(most_seconds, count);
    const auto found = known_->looks.find(key);
    Look look;
    if (found != known_->looks.end()) {
      look = found->second;
    } else {
      const std::vector<bool> recomputed = chooser.recomputed_after(count);
      Duplicator duplicator(graph_, recomputed);
      look.count = count;
      look.graph = duplicator.run();
      look.nodes = duplicator.nodes();
      Planned planned = planned_of(look.graph, known_->matmuls, *known_->groups);
      if (more_layers > 0) look.unseen_bytes = times(more_layers, kept_by_layers(planned));
      look.problem = std::move(planned.memory.problem);
      if (keeps_) known_->looks.emplace(key, look);
    }
    look.peak_bytes =
        look.unseen_bytes + peak_bytes(look.problem, order_within(look.problem, less(budget, look.unseen_bytes)));
    return look;
  }

 private:
  const Graph& graph_;
  bool keeps_;
  RecomputeLooks own_;
  RecomputeLooks::Known* known_;
};

namespace {

// About the fewest choices that meet the budget, or else those of the lowest peak. More is not always less: what is
// recomputed is live too. So first a look at the best choice alone and at some counts; then, between the first that
// meets the budget and the one before it, halving. A look fuses and orders the whole step: none is taken where too
// little of what lies idle at the peak is recomputed to meet the budget, or else to go below the lowest so far by more
// than a search of orders leaves.
std::optional<Look> best_look(LooksOf& at, const Chooser& chooser, double most_seconds, uint64_t budget,
                              double more_layers, const Baseline& before, size_t& looks) {
  std::optional<Look> best;
  const auto least_after = [&](size_t count) {
    KeptBytes kept;
    if (more_layers > 0)
      for (const auto& [node, bytes] : before.kept)
        if (!chooser.is_recomputed_after(count, node)) kept.emplace(node, bytes);
    const uint64_t unseen = times(more_layers, kept);
    uint64_t least = UINT64_MAX;
    for (const IdleAtPeak& peak : before.peaks) {
      uint64_t bytes = peak.peak_bytes;
      for (const auto& [node, idle] : peak.idle_bytes)
        if (chooser.is_recomputed_after(count, node)) bytes -= idle;
      least = std::min(least, bytes + unseen);
    }
    return least;
  };
  const auto meets_budget = [&](size_t count) {
    const uint64_t lowest = best ? std::min(best->peak_bytes, before.peak_bytes) : before.peak_bytes;
    const uint64_t least = least_after(count);
    if (least > budget && least + before.peak_bytes / kOrderFineness >= lowest) return false;
    ++looks;
    Look look = at.at(chooser, most_seconds, count, budget, more_layers);
    const bool meets = look.peak_bytes <= budget;
    if (!best || meets || look.peak_bytes < best->peak_bytes) best = std::move(look);
    return meets;
  };
  size_t low = 0;
  size_t high = 0;
  for (size_t part = 0; part <= kLooks && high == 0; ++part) {
    const size_t count = part == 0 ? std::min<size_t>(chooser.taken(), 1) : chooser.taken() * part / kLooks;
    if (count > low) (meets_budget(count) ? high : low) = count;
  }
  while (high > low + 1 + chooser.taken() / kFineness) {
    const size_t middle = low + (high - low) / 2;
    (meets_budget(middle) ? high : low) = middle;
  }
  return best;
}

}  // namespace

RecomputeResult recompute(Graph graph, const RecomputeOptions& options) {
  Chooser chooser(graph, options);
  RecomputeResult result;
  result.step_seconds = chooser.step_seconds();
  const uint64_t budget = options.budget_bytes.value_or(0);
  LooksOf looks(graph, options);
  Baseline before;
  {
    const Planned& planned = looks.plain();
    if (options.more_layers > 0) before.kept = kept_by_layers(planned);
    before.unseen_bytes = times(options.more_layers, before.kept);
    const UnitOrder order = order_within(planned.memory.problem, less(budget, before.unseen_bytes));
    before.peak_bytes = before.unseen_bytes + peak_bytes(planned.memory.problem, order);
    if (before.peak_bytes > budget)
      before.peaks = {idle_at_peak(planned, order), idle_at_peak(planned, program_order(planned.memory.problem))};
    before.problem = planned.memory.problem;
  }
  result.peak_before = before.peak_bytes;
  if (result.peak_before > budget) {
    const double most_seconds = options.budget_bytes ? kAnyTime : options.most_extra * result.step_seconds;
    // Stages of a pipeline keep what exchanges give.
    const bool may_repeat_exchanges = options.budget_bytes && options.never.empty();
    std::optional<Look> best;
    for (const Kind dearest : {Kind::kContraction, Kind::kExchange}) {
      const bool is_met = best && best->peak_bytes <= budget;
      if (dearest == Kind::kExchange && (is_met || !may_repeat_exchanges)) break;
      const size_t taken = chooser.taken();
      chooser.choose_all(most_seconds, dearest);
      if (dearest == Kind::kExchange && chooser.taken() == taken) break;
      std::optional<Look> found =
          best_look(looks, chooser, most_seconds, budget, options.more_layers, before, result.looks);
      if (!best || (found && found->peak_bytes < best->peak_bytes)) best = std::move(found);
    }
    if (!best || best->peak_bytes > budget) {  // the search that order() makes may still find what meets it
      result.peak_before = before.unseen_bytes + plan_order(before.problem).peak_bytes;
      if (best) best->peak_bytes = best->unseen_bytes + plan_order(best->problem).peak_bytes;
    }
    if (best && result.peak_before > budget && best->peak_bytes < result.peak_before) {
      result.peak_after = best->peak_bytes;
      result.nodes = best->nodes;
      result.extra_seconds = chooser.extra_seconds_after(best->count);
      result.graph = std::move(best->graph);
    }
  }
  if (result.nodes == 0) result.peak_after = result.peak_before;
  if (options.budget_bytes && result.peak_after > budget)
    result.why_not = str("the lowest peak that recomputation reaches is {}, and the budget is {}",
                         human_bytes(result.peak_after), human_bytes(budget));
  if (result.nodes == 0) result.graph = std::move(graph);
  return result;
}

}  // namespace stepc
