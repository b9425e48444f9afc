// Nodes are taken in program order; each joins the groups that make what it reads, or that read the same memory, where
// loops and order allow. The order: every group and every node outside has a slot on a line, after all that it reads
// and before all that reads it, so no two groups ever wait for each other.
#include "passes/fuse.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "loops/lower.h"
#include "loops/product_tail.h"
#include "ops/op_def.h"
#include "passes/dead_code.h"

namespace stepc {

namespace {

constexpr int kNoGroup = -1;
constexpr size_t kMostNodes = 200;
constexpr size_t kMostTensors = 48;  // read and written by a kernel
constexpr size_t kMostPieces = 8;    // operands of a concat inside a kernel
constexpr size_t kNearby = 64;       // nodes between readers of the same memory
constexpr int64_t kMuchSmaller = 16;

enum class Role : uint8_t {
  kOutside,
  kFree,  // costs nothing inside a kernel: every group that reads it makes it for itself
  kWork,
};

struct Unit {                 // a group, or a node outside
  std::vector<size_t> nodes;  // ascending, but products first
  double slot = 0;
  bool products = false;
};

// Ops, attributes, types and what reads what: two groups with the same key have the same loops.
class GroupKey {
 public:
  explicit GroupKey(const Graph& group) {
    for (const GraphTensor& tensor : group.tensors) {
      add(tensor.type.dtype);
      add(tensor.type.shape.size());
      for (int64_t size : tensor.type.shape) add(size);
    }
    for (const Node& node : group.nodes) {
      add(node.op);
      add(node.inputs);
      add(node.outputs);
      add(to_text(node.attrs));
    }
    for (const GraphInput& input : group.inputs) add(input.tensor);
    for (const GraphOutput& output : group.outputs) add(output.tensor);
  }
  std::string take() { return std::move(key_); }

 private:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(const T& value) { key_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(const std::string& text) {
    add(text.size());
    key_ += text;
  }
  void add(const std::vector<TensorId>& tensors) {
    add(tensors.size());
    for (TensorId tensor : tensors) add(tensor);
  }
  std::string key_;
};

class Fuser {
 public:
  Fuser(const Graph& graph, const ProductRule& rule, KnownGroups& known)
      : graph_(graph), rule_(rule), known_(known), group_of_(graph.nodes.size(), kNoGroup) {
    users_.resize(graph.tensors.size());
    returned_.resize(graph.tensors.size(), false);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (TensorId input : graph.nodes[n].inputs) users_[input.index()].push_back(n);
    for (const GraphOutput& output : graph.outputs)
      if (output.tensor.valid()) returned_[output.tensor.index()] = true;
    find_changes();
    assign_roles();
  }

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (roles_[n] == Role::kWork) place(n);
    place_products();
    place_tails();
    return written();
  }

 private:
  void find_changes() {
    std::map<uint32_t, TensorId> holds;  // by input, after host code
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!is_host_code(graph_.nodes[n])) continue;
      for (const HostCode::Slot& slot : host_code_of(graph_.nodes[n]).slots) {
        const auto [held, is_first] = holds.emplace(slot.input, graph_.inputs[slot.input].tensor);
        changed_at_[held->second] = n;
        held->second = slot.after;
      }
    }
  }

  // ---- roles

  [[nodiscard]] static Role role_of(const Graph& graph, const Node& node) {
    if (node.aten || node.outputs.size() != 1) return Role::kOutside;
    const OpDef& op = op_def(node.op);
    if (op.has(Trait::kComposite) || node.op == "bitcast") return Role::kOutside;
    if (op.has(Trait::kView)) return Role::kFree;
    if (op.has(Trait::kConstant))
      return node.op == "constant" && element_count(graph.shape(node.outputs[0])) != 1 ? Role::kOutside : Role::kFree;
    const bool moves = node.op == "pad" || (node.op == "concat" && node.inputs.size() <= kMostPieces);
    const bool reads = node.op == "take" || node.op == "gather";
    const bool works = op.has(Trait::kElementwise) || op.has(Trait::kReduction) || op.has(Trait::kRandom);
    return works || moves || reads ? Role::kWork : Role::kOutside;
  }

  void assign_roles() {
    for (const Node& node : graph_.nodes) roles_.push_back(role_of(graph_, node));
    // A cast to a wider type is cheaper made again by each reader than written and read.
    for (size_t n = graph_.nodes.size(); n-- > 0;)
      if (roles_[n] == Role::kWork && is_widening(graph_.nodes[n]) && only_work_reads(graph_.nodes[n].outputs[0]))
        roles_[n] = Role::kFree;
  }
  [[nodiscard]] bool is_widening(const Node& node) const {
    if (node.op != "cast") return false;
    const DType from = graph_.type(node.inputs[0]).dtype;
    const DType to = graph_.type(node.outputs[0]).dtype;
    return is_floating(from) && is_floating(to) && size_of(from) < size_of(to);
  }
  [[nodiscard]] bool only_work_reads(TensorId tensor) const {
    if (returned_[tensor.index()] || users_[tensor.index()].empty()) return false;
    return std::ranges::all_of(users_[tensor.index()], [&](size_t user) {
      if (roles_[user] == Role::kFree) return only_work_reads(graph_.nodes[user].outputs[0]);
      return roles_[user] == Role::kWork;
    });
  }

  // ---- what a node reads and who reads it, through what is free

  [[nodiscard]] std::set<TensorId> read_by(size_t node) const {
    std::set<TensorId> tensors;
    for (TensorId input : graph_.nodes[node].inputs) add_sources(input, tensors);
    return tensors;
  }
  void add_sources(TensorId tensor, std::set<TensorId>& tensors) const {
    const NodeId producer = graph_.tensors[tensor.index()].producer;
    if (!producer.valid() || roles_[producer.index()] != Role::kFree) {
      tensors.insert(tensor);
      return;
    }
    for (TensorId input : graph_.nodes[producer.index()].inputs) add_sources(input, tensors);
  }
  // Nodes that are not free and read `tensor`; whether the graph returns it, or a view of it.
  bool add_readers(TensorId tensor, std::set<size_t>& readers) const {
    bool returned = returned_[tensor.index()];
    for (size_t user : users_[tensor.index()]) {
      if (roles_[user] == Role::kFree)
        returned = add_readers(graph_.nodes[user].outputs[0], readers) || returned;
      else
        readers.insert(user);
    }
    return returned;
  }
  [[nodiscard]] bool escapes(TensorId tensor, const std::set<size_t>& members) const {
    std::set<size_t> readers;
    return add_readers(tensor, readers) ||
           std::ranges::any_of(readers, [&](size_t reader) { return !members.contains(reader); });
  }
  [[nodiscard]] double slot_of(size_t node) const {
    return group_of_[node] == kNoGroup ? static_cast<double>(node) : groups_[static_cast<size_t>(group_of_[node])].slot;
  }

  // ---- a set of nodes as a kernel

  [[nodiscard]] std::vector<size_t> in_order(const std::set<size_t>& members) const {
    std::vector<size_t> nodes(members.begin(), members.end());
    std::stable_partition(nodes.begin(), nodes.end(), [this](size_t node) { return is_product(graph_.nodes[node]); });
    return nodes;
  }

  // The graph that the members would be; also what extract_groups() gives in the end.
  class GroupBuilder {
   public:
    GroupBuilder(const Fuser& fuser, const std::set<size_t>& members) : fuser_(fuser), members_(members) {}

    Graph build() {
      const std::vector<size_t> nodes = fuser_.in_order(members_);
      for (size_t member : nodes) add(member);
      for (size_t member : nodes) {
        const TensorId made = fuser_.graph_.nodes[member].outputs[0];
        if (!fuser_.escapes(made, members_)) continue;
        group_.outputs.emplace_back();
        group_.outputs.back().tensor = inside_.at(made);
      }
      return std::move(group_);
    }

   private:
    TensorId inside(TensorId tensor) {
      if (const auto found = inside_.find(tensor); found != inside_.end()) return found->second;
      const NodeId producer = fuser_.graph_.tensors[tensor.index()].producer;
      if (producer.valid() && fuser_.roles_[producer.index()] == Role::kFree) {
        add(producer.index());
        return inside_.at(tensor);
      }
      return from_outside(tensor);
    }
    TensorId from_outside(TensorId tensor) {
      const TensorId input = group_.add_input({InputKind::kCaptured, str("{}", group_.inputs.size()), {}, {}, 0},
                                              fuser_.graph_.type(tensor));
      inside_[tensor] = input;
      return input;
    }
    void add(size_t place) {
      Node node = fuser_.graph_.nodes[place];
      const TensorId made = node.outputs[0];
      const bool is_matmul = is_product(node);  // reads what lies in memory
      for (TensorId& input : node.inputs) input = is_matmul ? from_outside(input) : inside(input);
      const NodeId id = group_.add_node(std::move(node), {fuser_.graph_.type(made)});
      inside_[made] = group_.nodes[id.index()].outputs[0];
    }

    const Fuser& fuser_;
    const std::set<size_t>& members_;
    Graph group_;
    std::map<TensorId, TensorId> inside_;
  };

  [[nodiscard]] bool is_kernel(const std::set<size_t>& members) const {
    if (members.size() > kMostNodes) return false;
    const Graph group = GroupBuilder(*this, members).build();
    if (group.inputs.size() + group.outputs.size() > kMostTensors) return false;
    if (group.outputs.empty()) return true;
    const auto [found, is_new] = known_.emplace(GroupKey(group).take(), false);
    if (is_new) found->second = why_no_loops(group).empty();
    return found->second;
  }

  // Elementwise on operands of one shape and on single numbers: always a kernel.
  [[nodiscard]] bool is_plain(size_t node) const {
    const Node& one = graph_.nodes[node];
    if (!op_def(one.op).has(Trait::kElementwise)) return false;
    const Shape& shape = graph_.shape(one.outputs[0]);
    return std::ranges::all_of(one.inputs, [&](TensorId input) {
      const NodeId producer = graph_.tensors[input.index()].producer;
      const bool viewed = producer.valid() && roles_[producer.index()] == Role::kFree &&
                          op_def(graph_.nodes[producer.index()].op).has(Trait::kView);
      return !viewed && (graph_.shape(input) == shape || graph_.shape(input).empty());
    });
  }
  [[nodiscard]] bool are_plain(const std::set<size_t>& members) const {
    Shape shape;
    for (size_t member : members) {
      const Shape& own = graph_.shape(graph_.nodes[member].outputs[0]);
      if (!is_plain(member) || (!shape.empty() && !own.empty() && own != shape)) return false;
      if (!own.empty()) shape = own;
    }
    return members.size() <= kMostNodes;
  }

  // The slots that `members` may have: after all they read, before all that reads them and before host code that
  // changes what they read. None: false.
  bool find_slot(const std::set<size_t>& members, double wanted, double& slot) const {
    double low = -1;
    double high = 2.0 * static_cast<double>(graph_.nodes.size());
    for (size_t member : members) {
      for (TensorId tensor : read_by(member)) {
        const NodeId producer = graph_.tensors[tensor.index()].producer;
        if (producer.valid() && !members.contains(producer.index())) low = std::max(low, slot_of(producer.index()));
        if (const auto changed = changed_at_.find(tensor); changed != changed_at_.end())
          high = std::min(high, static_cast<double>(changed->second));
      }
      std::set<size_t> readers;
      add_readers(graph_.nodes[member].outputs[0], readers);
      for (size_t reader : readers)
        if (!members.contains(reader)) high = std::min(high, slot_of(reader));
    }
    if (low >= high) return false;
    slot = low < wanted && wanted < high ? wanted : low + (high - low) / 2;
    return low < slot && slot < high;
  }

  // ---- joining

  [[nodiscard]] int64_t size_of_group(const std::set<size_t>& members) const {
    int64_t most = 0;
    for (size_t member : members) {
      most = std::max(most, element_count(graph_.shape(graph_.nodes[member].outputs[0])));
      for (TensorId input : graph_.nodes[member].inputs)
        if (op_def(graph_.nodes[member].op).has(Trait::kReduction))
          most = std::max(most, element_count(graph_.shape(input)));
    }
    return most;
  }

  // What is made once for many readers is not made part of one of them.
  [[nodiscard]] bool serves_others(const std::set<size_t>& small, const std::set<size_t>& large) const {
    if (size_of_group(small) * kMuchSmaller > size_of_group(large)) return false;
    for (size_t member : small) {
      std::set<size_t> readers;
      const bool returned = add_readers(graph_.nodes[member].outputs[0], readers);
      if (returned) return true;
      for (size_t reader : readers)
        if (!small.contains(reader) && !large.contains(reader)) return true;
    }
    return false;
  }

  // Groups that `node` could join, the latest first.
  [[nodiscard]] std::vector<int> candidates(size_t node) const {
    std::vector<int> groups;
    const auto add = [&](size_t other) {
      const int group = group_of_[other];
      if (group == kNoGroup || graph_.nodes[other].source.phase != graph_.nodes[node].source.phase) return;
      if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
    };
    const std::set<TensorId> tensors = read_by(node);
    for (TensorId tensor : tensors)
      if (const NodeId producer = graph_.tensors[tensor.index()].producer; producer.valid()) add(producer.index());
    std::ranges::sort(groups, std::greater<>());
    std::vector<int> makers = std::move(groups);
    groups.clear();
    const int64_t size = size_of_group({node});
    for (TensorId tensor : tensors) {
      if (element_count(graph_.shape(tensor)) != size || size == 1) continue;
      std::set<size_t> readers;
      add_readers(tensor, readers);
      for (size_t reader : readers)
        if (reader < node && node - reader <= kNearby && roles_[reader] == Role::kWork &&
            size_of_group({reader}) == size)
          add(reader);
    }
    std::ranges::sort(groups, std::greater<>());
    for (int group : groups)
      if (std::ranges::find(makers, group) == makers.end()) makers.push_back(group);
    return makers;
  }

  void place(size_t node) {
    std::set<size_t> members = {node};
    if (!are_plain(members) && !is_kernel(members)) {
      roles_[node] = Role::kOutside;
      return;
    }
    double slot = static_cast<double>(node);
    std::vector<int> joined;
    for (int group : candidates(node)) {
      const Unit& unit = groups_[static_cast<size_t>(group)];
      const std::set<size_t> other(unit.nodes.begin(), unit.nodes.end());
      if (serves_others(other, members)) continue;
      std::set<size_t> both = members;
      both.insert(other.begin(), other.end());
      double now = slot;
      if (!find_slot(both, slot, now) || (!are_plain(both) && !is_kernel(both))) continue;
      members = std::move(both);
      slot = now;
      joined.push_back(group);
    }
    const auto home = static_cast<size_t>(joined.empty() ? static_cast<int>(groups_.size()) : joined[0]);
    if (home == groups_.size()) groups_.emplace_back();
    for (int group : joined) groups_[static_cast<size_t>(group)] = {};
    groups_[home] = {{members.begin(), members.end()}, slot};
    for (size_t member : members) group_of_[member] = static_cast<int>(home);
  }

  // ---- products

  // Those that share their left operand and stand near each other, where order allows.
  void place_products() {
    std::map<std::pair<TensorId, bool>, std::vector<size_t>> sharing;  // by left operand and whether it is turned
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (runs_blocked(graph_, node, rule_))
        sharing[{node.inputs[0], node.attrs.get<bool>("transpose_a")}].push_back(n);
    }
    for (const auto& [operand, nodes] : sharing) {
      Unit unit;
      for (size_t n : nodes) {
        if (join_products(n, unit)) continue;
        keep_products(unit);
        unit = {{n}, static_cast<double>(n), true};
      }
      keep_products(unit);
    }
  }
  bool join_products(size_t node, Unit& unit) const {
    if (unit.nodes.empty() || unit.nodes.size() == kMostProducts) return false;
    const size_t first = unit.nodes.front();
    if (node - first > kNearby || graph_.nodes[node].source.phase != graph_.nodes[first].source.phase) return false;
    std::set<size_t> members(unit.nodes.begin(), unit.nodes.end());
    members.insert(node);
    double slot = 0;
    if (!find_slot(members, unit.slot, slot)) return false;
    unit.slot = slot;
    unit.nodes.push_back(node);
    return true;
  }
  void keep_products(const Unit& unit) {
    if (unit.nodes.size() < 2) return;
    groups_.emplace_back();
    set_group(groups_.size() - 1, unit);
  }
  void set_group(size_t group, const Unit& unit) {
    for (size_t member : unit.nodes) {
      roles_[member] = Role::kWork;
      group_of_[member] = static_cast<int>(group);
    }
    groups_[group] = unit;
  }

  // ---- tails of products: what finishes them where they are made, tile by tile

  void place_tails() {
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].products) continue;
      const std::set<size_t> members(groups_[group].nodes.begin(), groups_[group].nodes.end());
      for (size_t product : products_read_by(members))
        if (join_tail(group, members, product)) break;
    }
  }
  // The last first: it has to wait for the others anyway.
  [[nodiscard]] std::vector<size_t> products_read_by(const std::set<size_t>& members) const {
    std::set<size_t, std::greater<>> products;
    for (size_t member : members)
      for (TensorId tensor : read_by(member)) {
        const NodeId producer = graph_.tensors[tensor.index()].producer;
        if (producer.valid() && runs_blocked(graph_, graph_.nodes[producer.index()], rule_))
          products.insert(producer.index());
      }
    return {products.begin(), products.end()};
  }

  bool join_tail(size_t group, const std::set<size_t>& members, size_t product) {
    const std::set<size_t> tail = tail_of(members, product);
    if (tail.empty()) return false;
    Unit unit{{product}, static_cast<double>(product), true};
    if (group_of_[product] != kNoGroup) unit = groups_[static_cast<size_t>(group_of_[product])];
    std::set<size_t> rest;
    std::ranges::set_difference(members, tail, std::inserter(rest, rest.end()));
    std::set<size_t> whole = tail;
    whole.insert(unit.nodes.begin(), unit.nodes.end());
    if (feeds_products(tail, unit) || !is_finished_product(whole) || (!rest.empty() && !is_kernel(rest))) return false;
    if (!find_slot(whole, unit.slot, unit.slot)) return false;
    unit.nodes = in_order(whole);
    const auto home = group_of_[product] == kNoGroup ? groups_.size() : static_cast<size_t>(group_of_[product]);
    if (home == groups_.size()) groups_.emplace_back();
    set_group(home, unit);
    groups_[group].nodes.assign(rest.begin(), rest.end());
    return true;
  }
  [[nodiscard]] bool feeds_products(const std::set<size_t>& tail, const Unit& unit) const {
    return std::ranges::any_of(unit.nodes, [&](size_t node) {
      if (!is_product(graph_.nodes[node])) return false;
      return std::ranges::any_of(read_by(node), [&](TensorId tensor) {
        const NodeId producer = graph_.tensors[tensor.index()].producer;
        return producer.valid() && tail.contains(producer.index());
      });
    });
  }
  [[nodiscard]] bool is_finished_product(const std::set<size_t>& members) const {
    if (members.size() > kMostNodes) return false;
    const Graph group = GroupBuilder(*this, members).build();
    return group.inputs.size() + group.outputs.size() <= kMostTensors && why_no_tail(group).empty();
  }

  // The members of a group that can finish `product` and gain by it: cheap ones, that read nothing else of its size and
  // leave nothing of that size behind but in its place. (Tiles are read and written at a third of the rate of a stream,
  // and costly functions hide the traffic of a kernel of their own.) None where they do not read it.
  [[nodiscard]] std::set<size_t> tail_of(const std::set<size_t>& members, size_t product) const {
    std::set<size_t> tail;
    for (size_t member : members)
      if (is_in_tiles(member, product)) tail.insert(member);
    for (;;) {
      const auto is_out = [&](size_t node) {
        return !reads_only(node, members, tail, product) || leaves_more(node, members, tail, product);
      };
      const auto out = std::ranges::find_if(tail, is_out);
      if (out != tail.end()) {
        tail.erase(out);
        continue;
      }
      const std::vector<size_t> left = left_behind(tail, product);
      if (left.size() <= products_of(product)) break;
      const auto last = std::find_if(left.rbegin(), left.rend(), [&](size_t node) { return tail.contains(node); });
      if (last == left.rend()) return {};
      tail.erase(*last);
    }
    const TensorId made = graph_.nodes[product].outputs[0];
    const bool reads = std::ranges::any_of(tail, [&](size_t node) { return read_by(node).contains(made); });
    return reads ? tail : std::set<size_t>();
  }
  // What the call for `product` would leave behind with this tail, and with one that it has.
  [[nodiscard]] std::vector<size_t> left_behind(const std::set<size_t>& tail, size_t product) const {
    std::set<size_t> whole = tail;
    if (group_of_[product] != kNoGroup) {
      const std::vector<size_t>& nodes = groups_[static_cast<size_t>(group_of_[product])].nodes;
      whole.insert(nodes.begin(), nodes.end());
    }
    whole.insert(product);
    std::vector<size_t> left;
    for (size_t node : in_order(whole)) {
      const TensorId made = graph_.nodes[node].outputs[0];
      if (element_count(graph_.shape(made)) > 1 && escapes(made, whole)) left.push_back(node);
    }
    return left;
  }
  [[nodiscard]] size_t products_of(size_t product) const {
    if (group_of_[product] == kNoGroup) return 1;
    const std::vector<size_t>& nodes = groups_[static_cast<size_t>(group_of_[product])].nodes;
    return static_cast<size_t>(
        std::ranges::count_if(nodes, [this](size_t node) { return is_product(graph_.nodes[node]); }));
  }
  [[nodiscard]] bool is_in_tiles(size_t node, size_t product) const {
    const Node& one = graph_.nodes[node];
    const bool is_sum = one.op == "sum" && element_count(graph_.shape(one.outputs[0])) == 1;
    if (!is_sum && (!op_def(one.op).has(Trait::kElementwise) || is_costly(one))) return false;
    const Shape& shape = graph_.shape(is_sum ? one.inputs[0] : one.outputs[0]);
    const Shape& tiles = graph_.shape(graph_.nodes[product].outputs[0]);
    return !shape.empty() && shape.back() == tiles.back() && element_count(shape) == element_count(tiles);
  }
  [[nodiscard]] bool reads_only(size_t node, const std::set<size_t>& members, const std::set<size_t>& tail,
                                size_t product) const {
    const int64_t size = element_count(graph_.shape(graph_.nodes[product].outputs[0]));
    return std::ranges::all_of(read_by(node), [&](TensorId tensor) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      if (producer.valid() && tail.contains(producer.index())) return graph_.nodes[producer.index()].op != "sum";
      if (producer.valid() && are_one_call(producer.index(), product)) return true;
      return element_count(graph_.shape(tensor)) < size && !(producer.valid() && members.contains(producer.index()));
    });
  }
  [[nodiscard]] bool are_one_call(size_t a, size_t b) const {
    return a == b || (is_product(graph_.nodes[a]) && group_of_[a] != kNoGroup && group_of_[a] == group_of_[b]);
  }
  // A tensor that the group alone would have kept to itself; or an update, which would wait for products that still
  // read what it replaces.
  [[nodiscard]] bool leaves_more(size_t node, const std::set<size_t>& members, const std::set<size_t>& tail,
                                 size_t product) const {
    const TensorId made = graph_.nodes[node].outputs[0];
    if (element_count(graph_.shape(made)) == 1 || !escapes(made, tail)) return false;
    return !escapes(made, members) || graph_.nodes[node].source.phase != graph_.nodes[product].source.phase;
  }

  // ---- writing

  class Writer {
   public:
    explicit Writer(const Fuser& fuser) : fuser_(fuser), now_(fuser.graph_.tensors.size()) {}

    Graph write() {
      const Graph& graph = fuser_.graph_;
      for (const GraphInput& input : graph.inputs)
        now_[input.tensor.index()] = out_.add_input(input, graph.type(input.tensor));
      std::vector<std::pair<double, Unit>> units;
      for (size_t n = 0; n < graph.nodes.size(); ++n)
        if (fuser_.roles_[n] == Role::kOutside) units.push_back({static_cast<double>(n), {{n}, 0}});
      for (const Unit& group : fuser_.groups_)
        if (!group.nodes.empty()) units.push_back({group.slot, group});
      std::ranges::stable_sort(units, {}, &std::pair<double, Unit>::first);
      for (const auto& [slot, unit] : units) {
        const size_t first = unit.nodes.front();
        if (fuser_.group_of_[first] == kNoGroup)
          keep(first, std::nullopt);
        else
          write_group(unit);
      }
      for (GraphOutput output : graph.outputs) {
        if (output.tensor.valid()) output.tensor = outside(output.tensor);
        out_.outputs.push_back(std::move(output));
      }
      return std::move(out_);
    }

   private:
    void write_group(const Unit& unit) {
      copies_.clear();
      const auto end_of_products = std::ranges::find_if_not(
          unit.nodes, [this](size_t member) { return is_product(fuser_.graph_.nodes[member]); });
      const std::span products(unit.nodes.begin(), end_of_products), others(end_of_products, unit.nodes.end());
      // What products read lies in memory: it is made before the group, whose nodes stand in a row.
      for (size_t member : products)
        for (TensorId input : fuser_.graph_.nodes[member].inputs) copies_[input] = outside(input);
      for (size_t member : products) keep(member, groups_);
      copies_.clear();
      for (size_t member : others) keep(member, groups_);
      ++groups_;
    }
    // A tensor as a node outside reads it: free nodes are made when first needed.
    TensorId outside(TensorId tensor) {
      TensorId& now = now_[tensor.index()];
      if (!now.valid()) keep(fuser_.graph_.tensors[tensor.index()].producer.index(), std::nullopt);
      return now_[tensor.index()];
    }
    TensorId in_group(TensorId tensor) {
      const NodeId producer = fuser_.graph_.tensors[tensor.index()].producer;
      if (!producer.valid() || fuser_.roles_[producer.index()] != Role::kFree) return now_[tensor.index()];
      if (const auto found = copies_.find(tensor); found != copies_.end()) return found->second;
      const TensorId copy = append(producer.index(), groups_)[0];
      copies_[tensor] = copy;
      return copy;
    }
    const std::vector<TensorId>& append(size_t place, std::optional<uint32_t> group) {
      Node node = fuser_.graph_.nodes[place];
      std::vector<TensorType> types;
      for (TensorId output : node.outputs) types.push_back(fuser_.graph_.type(output));
      for (TensorId& input : node.inputs) input = group ? in_group(input) : outside(input);
      node.group = group;
      return out_.nodes[out_.add_node(std::move(node), types).index()].outputs;
    }
    void keep(size_t place, std::optional<uint32_t> group) {
      const std::vector<TensorId> made = append(place, group);
      const Node& node = fuser_.graph_.nodes[place];
      for (size_t k = 0; k < made.size(); ++k) now_[node.outputs[k].index()] = made[k];
    }

    const Fuser& fuser_;
    Graph out_;
    std::vector<TensorId> now_;            // by old tensor
    std::map<TensorId, TensorId> copies_;  // by old tensor: what the group at hand reads in place of free nodes
    uint32_t groups_ = 0;
  };
  [[nodiscard]] Graph written() const { return Writer(*this).write(); }

  const Graph& graph_;
  const ProductRule& rule_;
  KnownGroups& known_;
  std::vector<Role> roles_;  // by node
  std::vector<std::vector<size_t>> users_;
  std::vector<bool> returned_;
  std::map<TensorId, size_t> changed_at_;  // what an input holds: the host code that changes it
  std::vector<int> group_of_;
  std::vector<Unit> groups_;
};

}  // namespace

Graph fuse(Graph graph, const ProductRule& products) {
  KnownGroups known;
  return fuse(std::move(graph), products, known);
}

Graph fuse(Graph graph, const ProductRule& products, KnownGroups& known) {
  const bool has_groups = std::ranges::any_of(graph.nodes, [](const Node& node) { return node.group.has_value(); });
  if (has_groups) return graph;
  // A node that nothing needs would have its say in what loops there are.
  graph = dead_code(std::move(graph));
  return Fuser(graph, products, known).run();
}

}  // namespace stepc
