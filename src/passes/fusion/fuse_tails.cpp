#include "passes/fusion/fuse_tails.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "loops/lower/product_tail.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

using Nodes = FusionGroups::Nodes;

// What can finish one product, and the call that it becomes.
class TailOfProduct {
 public:
  // `members`: a kernel that reads the product.
  TailOfProduct(const FusionGroups& groups, size_t product, const Nodes& members)
      : groups_(groups),
        graph_(groups.graph()),
        product_(product),
        members_(members),
        call_(call_of(groups, product)) {}

  // The members that can finish the product and gain by it: cheap ones, that read nothing else of its size and leave
  // nothing of that size behind but in its place. (Tiles are read and written at a third of the rate of a stream, and
  // costly functions hide the traffic of a kernel of their own.) None where they do not read it.
  [[nodiscard]] Nodes find() const {
    Nodes tail;
    for (size_t member : members_)
      if (is_in_tiles(member)) tail.insert(member);
    for (;;) {
      const auto out = std::ranges::find_if(
          tail, [&](size_t node) { return !reads_only_tiles(node, tail) || leaves_more(node, tail); });
      if (out != tail.end()) {
        tail.erase(out);
        continue;
      }
      const std::vector<size_t> left = left_behind(tail);
      if (left.size() <= count_products()) break;
      const auto last = std::find_if(left.rbegin(), left.rend(), [&](size_t node) { return tail.contains(node); });
      if (last == left.rend()) return {};
      tail.erase(*last);
    }
    const TensorId made = graph_.nodes[product_].outputs[0];
    const bool reads = std::ranges::any_of(tail, [&](size_t node) { return groups_.read_by(node).contains(made); });
    return reads ? tail : Nodes();
  }

  // The call with this tail, and a slot for it; none where it is not one call.
  [[nodiscard]] std::optional<FusionGroup> call_with(const Nodes& tail) const {
    Nodes whole = tail;
    whole.insert(call_.nodes.begin(), call_.nodes.end());
    if (feeds_products(tail) || !is_one_call(whole)) return std::nullopt;
    const std::optional<double> slot = groups_.find_slot(whole, call_.slot);
    if (!slot) return std::nullopt;
    return FusionGroup{groups_.in_order(whole), *slot, true};
  }

 private:
  // What the product runs with so far: alone, or with those that share its operand and with a tail.
  static FusionGroup call_of(const FusionGroups& groups, size_t product) {
    if (const std::optional<size_t> group = groups.group_of(product)) return groups.groups()[*group];
    return {{product}, static_cast<double>(product), true};
  }

  [[nodiscard]] bool is_product(size_t node) const { return has(graph_.nodes[node], Trait::kContraction); }
  [[nodiscard]] static bool adds_up(const Node& node) { return op_def(node.op).combine == Combine::kSum; }
  [[nodiscard]] size_t count_products() const {
    return static_cast<size_t>(std::ranges::count_if(call_.nodes, [this](size_t node) { return is_product(node); }));
  }

  [[nodiscard]] bool is_in_tiles(size_t node) const {
    const Node& one = graph_.nodes[node];
    const bool to_one = adds_up(one) && element_count(graph_.shape(one.outputs[0])) == 1;
    if (!to_one && (!has(one, Trait::kElementwise) || is_costly(one))) return false;
    const Shape& shape = graph_.shape(to_one ? one.inputs[0] : one.outputs[0]);
    const Shape& tiles = graph_.shape(graph_.nodes[product_].outputs[0]);
    return !shape.empty() && shape.back() == tiles.back() && element_count(shape) == element_count(tiles);
  }
  [[nodiscard]] bool reads_only_tiles(size_t node, const Nodes& tail) const {
    const int64_t size = element_count(graph_.shape(graph_.nodes[product_].outputs[0]));
    return std::ranges::all_of(groups_.read_by(node), [&](TensorId tensor) {
      const NodeId producer = graph_.tensors[tensor.index()].producer;
      if (producer.valid() && tail.contains(producer.index())) return !adds_up(graph_.nodes[producer.index()]);
      if (producer.valid() && is_of_call(producer.index())) return true;
      return element_count(graph_.shape(tensor)) < size && !(producer.valid() && members_.contains(producer.index()));
    });
  }
  [[nodiscard]] bool is_of_call(size_t node) const {
    return node == product_ ||
           (is_product(node) && groups_.group_of(node) && groups_.group_of(node) == groups_.group_of(product_));
  }
  // A tensor that the group alone would have kept to itself; or an update, which would wait for products that still
  // read what it replaces.
  [[nodiscard]] bool leaves_more(size_t node, const Nodes& tail) const {
    const TensorId made = graph_.nodes[node].outputs[0];
    if (element_count(graph_.shape(made)) == 1 || !groups_.escapes(made, tail)) return false;
    return !groups_.escapes(made, members_) || graph_.nodes[node].source.phase != graph_.nodes[product_].source.phase;
  }
  // What the call would leave behind with this tail, and with one that it has.
  [[nodiscard]] std::vector<size_t> left_behind(const Nodes& tail) const {
    Nodes whole = tail;
    whole.insert(call_.nodes.begin(), call_.nodes.end());
    std::vector<size_t> left;
    for (size_t node : groups_.in_order(whole)) {
      const TensorId made = graph_.nodes[node].outputs[0];
      if (element_count(graph_.shape(made)) > 1 && groups_.escapes(made, whole)) left.push_back(node);
    }
    return left;
  }

  [[nodiscard]] bool feeds_products(const Nodes& tail) const {
    return std::ranges::any_of(call_.nodes, [&](size_t node) {
      if (!is_product(node)) return false;
      return std::ranges::any_of(groups_.read_by(node), [&](TensorId tensor) {
        const NodeId producer = graph_.tensors[tensor.index()].producer;
        return producer.valid() && tail.contains(producer.index());
      });
    });
  }
  [[nodiscard]] bool is_one_call(const Nodes& members) const {
    const std::optional<Graph> group = groups_.as_graph(members);
    return group && why_no_tail(*group).empty();
  }

  const FusionGroups& groups_;
  const Graph& graph_;
  size_t product_;
  const Nodes& members_;
  FusionGroup call_;
};

// Products on the blocked kernel, the last first: it has to wait for the others anyway.
std::vector<size_t> products_read_by(const FusionGroups& groups, const Nodes& members, const ProductRule& rule) {
  const Graph& graph = groups.graph();
  std::set<size_t, std::greater<>> products;
  for (size_t member : members)
    for (TensorId tensor : groups.read_by(member)) {
      const NodeId producer = graph.tensors[tensor.index()].producer;
      if (producer.valid() && runs_blocked(graph, graph.nodes[producer.index()], rule))
        products.insert(producer.index());
    }
  return {products.begin(), products.end()};
}

// Takes the tail of `product` out of the group's members; what is left stays a kernel.
bool move_tail(FusionGroups& groups, size_t group, const Nodes& members, size_t product) {
  const TailOfProduct finished(groups, product, members);
  const Nodes tail = finished.find();
  if (tail.empty()) return false;
  Nodes rest;
  std::ranges::set_difference(members, tail, std::inserter(rest, rest.end()));
  const std::optional<FusionGroup> call = finished.call_with(tail);
  if (!call || (!rest.empty() && !groups.is_kernel(rest))) return false;
  const std::optional<size_t> home = groups.group_of(product);
  groups.set(home ? *home : groups.add(), *call);
  groups.set(group, {{rest.begin(), rest.end()}, groups.groups()[group].slot});
  return true;
}

}  // namespace

void fuse_tails(FusionGroups& groups, const ProductRule& rule) {
  for (size_t group = 0; group < groups.groups().size(); ++group) {
    if (groups.groups()[group].products) continue;
    const std::vector<size_t>& nodes = groups.groups()[group].nodes;
    const Nodes members(nodes.begin(), nodes.end());
    for (size_t product : products_read_by(groups, members, rule))
      if (move_tail(groups, group, members, product)) break;
  }
}

}  // namespace stepc
