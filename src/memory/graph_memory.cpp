#include "memory/graph_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "ir/alignment.h"
#include "memory/in_place.h"

namespace stepc {
namespace {

using memory::InPlace;

void sort_unique(std::vector<uint32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

class Builder {
 public:
  Builder(const Graph& graph, const KernelFacts& kernels)
      : graph_(graph),
        kernels_(kernels),
        roots_(memory::roots_of(graph, kernels.copied_views)),
        unit_of_(graph.nodes.size(), kNone),
        readers_of_input_(graph.inputs.size()) {}

  GraphMemory build() {
    make_units();
    if (has_guards()) renumber_units();
    keep_draws_in_order();
    make_values();
    for (size_t u = 0; u < units_.size(); ++u) {
      pairs_.push_back(memory::in_place_pairs(graph_, roots_, memory_.nodes_of[u]));
      if (kernels_.may_share)
        std::erase_if(pairs_.back(), [&](const InPlace& pair) {
          return !kernels_.may_share(memory_.nodes_of[u].front(), pair.operand, pair.result);
        });
      if (!kernels_.workspace_bytes) continue;
      for (NodeId node : memory_.nodes_of[u]) units_[u].workspace_bytes += aligned(kernels_.workspace_bytes(node));
    }
    place_host_code();
    for (const GraphOutput& output : graph_.outputs)
      if (output.kind == GraphOutput::Kind::kUpdate && filled_by_host_[output.input].empty())
        place_update(output.input, output.tensor, before_updates_, kNone);
    for (size_t u = 0; u < units_.size(); ++u) {
      add_reuses(static_cast<uint32_t>(u));
      sort_unique(units_[u].after);
    }
    return std::move(memory_);
  }

 private:
  [[nodiscard]] bool in_program_memory(TensorId root) const { return graph_.producer(root) == nullptr; }
  [[nodiscard]] uint32_t maker_of(TensorId root) const {
    return unit_of_[graph_.tensors[root.index()].producer.index()];
  }
  OrderValue& value(TensorId root) { return values_[memory_.value_of[root.index()]]; }

  // A unit for every group and every node that stands alone and is no view. Groups stand in a row, so program order is
  // an order of the units.
  void make_units() {
    uint32_t open = kNone;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const bool view = !node.group && node.outputs.size() == 1 && roots_[node.outputs[0]] != node.outputs[0];
      if (view) {
        open = kNone;
        continue;
      }
      const uint32_t group = node.group.value_or(kNone);
      if (group == kNone || group != open) memory_.nodes_of.emplace_back();
      open = group;
      memory_.nodes_of.back().push_back(NodeId(n));
      unit_of_[n] = static_cast<uint32_t>(memory_.nodes_of.size() - 1);
    }
    units_.resize(memory_.nodes_of.size());
  }

  void keep_draws_in_order() {
    uint32_t last = kNone;
    for (uint32_t u = 0; u < units_.size(); ++u) {
      const Node& node = graph_.nodes[memory_.nodes_of[u][0].index()];
      if (!node.aten || !node.aten->draws) continue;
      if (last != kNone) units_[u].after.push_back(last);
      last = u;
    }
  }

  [[nodiscard]] bool has_guards() const {
    return std::ranges::any_of(graph_.outputs,
                               [](const GraphOutput& output) { return output.kind == GraphOutput::Kind::kGuard; });
  }
  // What guards need is moved up to where it can run, so that updates can wait for it.
  void renumber_units() {
    const size_t count = memory_.nodes_of.size();
    std::vector<bool> guards(graph_.tensors.size(), false);  // roots that guards need
    for (const GraphOutput& output : graph_.outputs)
      if (output.kind == GraphOutput::Kind::kGuard) guards[roots_[output.tensor].index()] = true;
    std::vector<bool> moves(count, false);
    for (size_t u = count; u-- > 0;) {
      for (NodeId node : memory_.nodes_of[u])
        for (TensorId made : graph_.nodes[node.index()].outputs) moves[u] = moves[u] || guards[made.index()];
      if (!moves[u]) continue;
      for (NodeId node : memory_.nodes_of[u])
        for (TensorId input : graph_.nodes[node.index()].inputs) guards[roots_[input].index()] = true;
    }
    std::vector<std::pair<size_t, size_t>> places;  // how many units to stand after at least; the unit
    for (size_t u = 0; u < count; ++u) {
      size_t place = moves[u] ? 0 : u + 1;
      if (moves[u])
        for (NodeId node : memory_.nodes_of[u])
          for (TensorId input : graph_.nodes[node.index()].inputs)
            if (const TensorId root = roots_[input]; !in_program_memory(root) && maker_of(root) != u)
              place = std::max(place, places[maker_of(root)].first);
      places.emplace_back(place, u);
    }
    std::sort(places.begin(), places.end());
    std::vector<std::vector<NodeId>> nodes_of;
    for (const auto& [place, unit] : places) nodes_of.push_back(std::move(memory_.nodes_of[unit]));
    memory_.nodes_of = std::move(nodes_of);
    for (uint32_t u = 0; u < count; ++u)
      for (NodeId node : memory_.nodes_of[u]) unit_of_[node.index()] = u;
  }

  void make_values() {
    std::vector<std::vector<uint32_t>> readers(graph_.tensors.size());  // by root: units
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (unit_of_[n] == kNone) continue;
      for (TensorId input : graph_.nodes[n].inputs) readers[roots_[input].index()].push_back(unit_of_[n]);
    }
    std::vector<bool> leaves(graph_.tensors.size(), false);
    for (const GraphOutput& output : graph_.outputs) {
      if (!output.tensor.valid()) continue;
      leaves[roots_[output.tensor].index()] = true;
      if (output.kind == GraphOutput::Kind::kUpdate) continue;
      handed_out_.push_back(roots_[output.tensor]);
      if (output.kind == GraphOutput::Kind::kGuard && !in_program_memory(roots_[output.tensor]))
        before_updates_.push_back(maker_of(roots_[output.tensor]));
    }
    for (const Node& node : graph_.nodes) {
      if (!is_host_code(node)) continue;
      for (const HostCode::Given& given : host_code_of(node).given) {
        if (!given.tensor.valid() || roots_[given.tensor] != given.tensor) continue;
        leaves[given.tensor.index()] = true;  // the program's from then on
        handed_out_.push_back(given.tensor);
      }
    }
    std::sort(handed_out_.begin(), handed_out_.end());
    sort_unique(before_updates_);
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      readers_of_input_[i] = std::move(readers[graph_.inputs[i].tensor.index()]);
      sort_unique(readers_of_input_[i]);
    }

    memory_.value_of.assign(graph_.tensors.size(), kNone);
    for (uint32_t u = 0; u < units_.size(); ++u) {
      for (NodeId node : memory_.nodes_of[u]) {
        for (TensorId output : graph_.nodes[node.index()].outputs) {
          if (roots_[output] != output) continue;
          std::vector<uint32_t>& users = readers[output.index()];
          sort_unique(users);
          const bool inside = std::erase(users, u) != 0 && users.empty() && !leaves[output.index()];
          if (!inside) add_value(output, u, leaves[output.index()], std::move(users));
        }
      }
    }
    for (OrderUnit& unit : units_) sort_unique(unit.reads);
    for (size_t t = 0; t < graph_.tensors.size(); ++t) memory_.value_of[t] = memory_.value_of[roots_.root[t].index()];
  }
  void add_value(TensorId tensor, uint32_t producer, bool kept, std::vector<uint32_t> users) {
    const auto id = static_cast<uint32_t>(values_.size());
    for (uint32_t user : users) units_[user].reads.push_back(id);
    units_[producer].makes.push_back(id);
    values_.push_back(
        {aligned(static_cast<uint64_t>(bytes_of(graph_.type(tensor)))), producer, kept, std::move(users)});
    memory_.tensor_of.push_back(tensor);
    memory_.input_of.push_back(kNone);
    memory_.value_of[tensor.index()] = id;
  }

  // What host code finds in the program's memory is written there before it runs, and what it leaves lies there.
  void place_host_code() {
    filled_by_host_.resize(graph_.inputs.size());
    for (uint32_t u = 0; u < units_.size(); ++u) {
      const Node& node = graph_.nodes[memory_.nodes_of[u].front().index()];
      if (!is_host_code(node)) continue;
      USER_CHECK(before_updates_.empty() || before_updates_.back() < u, "a decision depends on what host code does");
      for (const HostCode::Slot& slot : host_code_of(node).slots) {
        keep_from_readers(slot, u);
        if (filled_by_host_[slot.input].empty()) place_update(slot.input, slot.before, before_updates_, u);
        value(slot.after).bytes = 0;
        value(slot.after).kept = false;
        memory_.input_of[memory_.value_of[slot.after.index()]] = slot.input;
        filled_by_host_[slot.input].push_back(slot.after);
      }
      before_updates_.push_back(u);
    }
  }

  // Whatever else reads what an input holds runs before host code that changes it.
  void keep_from_readers(const HostCode::Slot& slot, uint32_t host) {
    const GraphInput& input = graph_.inputs[slot.input];
    const std::vector<TensorId>& filled = filled_by_host_[slot.input];
    const TensorId holds = filled.empty() ? input.tensor : filled.back();
    const auto is_read = [&](const GraphOutput& output) {
      return output.tensor.valid() && roots_[output.tensor] == holds;
    };
    const std::vector<uint32_t>& readers = filled.empty() ? readers_of_input_[slot.input] : value(filled.back()).users;
    USER_CHECK(std::ranges::none_of(graph_.outputs, is_read) && (readers.empty() || readers.back() <= host),
               "what {} '{}' held before host code changed it is read after that", name_of(input.kind), input.key);
    for (uint32_t reader : readers)
      if (reader != host) units_[host].after.push_back(reader);
  }

  // New contents of an input, which must not be there before units `before` have run, and must be when `host` runs, or
  // else at the step's end. From the update backwards along results that take over each other's memory: the longest
  // such chain that can begin in the input's memory lies there.
  void place_update(uint32_t place, TensorId update, const std::vector<uint32_t>& before, uint32_t host) {
    const GraphInput& input = graph_.inputs[place];
    const TensorId root = roots_[update];
    if (in_program_memory(root) || !roots_.whole[update.index()] || value(root).bytes == 0 ||
        std::binary_search(handed_out_.begin(), handed_out_.end(), root))
      return;
    for (const GraphOutput& other : graph_.outputs) {
      if (!other.tensor.valid()) continue;
      if (roots_[other.tensor] == input.tensor) return;           // the old contents are read at the step's end,
      if (host != kNone && roots_[other.tensor] == root) return;  // or these, when host code may have changed them
    }
    if (host != kNone && value(root).users.back() > host) return;
    const auto fits = [&](TensorId tensor) {
      const bool is_plain = input.strides.empty() || input.strides == channels_last_strides(graph_.shape(input.tensor));
      const bool lies_as = kernels_.lies_as ? kernels_.lies_as(tensor, place) : is_plain;
      return lies_as && bytes_of(graph_.type(tensor)) == bytes_of(graph_.type(input.tensor));
    };
    std::vector<TensorId> chain;
    size_t length = 0;
    for (TensorId next = root; next.valid() && fits(next); next = taken_over_by(next)) {
      chain.push_back(next);
      if (may_begin_in(place, next, before, host)) length = chain.size();
    }
    if (length == 0) return;
    const uint32_t first = maker_of(chain[length - 1]);
    for (const std::vector<uint32_t>* earlier : {&std::as_const(readers_of_input_[place]), &before})
      for (uint32_t unit : *earlier)
        if (unit != first && unit != host) units_[first].after.push_back(unit);
    if (host != kNone)
      for (uint32_t user : value(root).users)
        if (user != host) units_[host].after.push_back(user);
    for (size_t i = 0; i < length; ++i) {
      value(chain[i]).bytes = 0;
      memory_.input_of[memory_.value_of[chain[i].index()]] = place;
      value(chain[i]).kept = false;
    }
  }

  // Whether `result` can be the first that is written into the memory of input `place`.
  bool may_begin_in(uint32_t place, TensorId result, const std::vector<uint32_t>& before, uint32_t host) {
    const uint32_t maker = maker_of(result);
    if (kernels_.brings_memory && kernels_.brings_memory(memory_.nodes_of[maker].front(), result)) return false;
    const TensorId old = graph_.inputs[place].tensor;
    const bool over_old = std::ranges::any_of(
        pairs_[maker], [&](const InPlace& pair) { return pair.operand == old && pair.result == result; });
    return std::ranges::all_of(
               readers_of_input_[place],
               [&](uint32_t reader) { return reader < maker || reader == host || (reader == maker && over_old); }) &&
           (before.empty() || before.back() < maker);
  }
  // A value that `result` is the only one to read, and may take over.
  TensorId taken_over_by(TensorId result) {
    for (const InPlace& pair : pairs_[maker_of(result)]) {
      if (pair.result != result || in_program_memory(pair.operand) || maker_of(pair.operand) == maker_of(result))
        continue;
      const OrderValue& operand = value(pair.operand);
      if (operand.bytes != 0 && !operand.kept && operand.users.size() == 1) return pair.operand;
    }
    return {};
  }

  void add_reuses(uint32_t unit) {
    for (const InPlace& pair : pairs_[unit]) {
      if (in_program_memory(pair.operand) || maker_of(pair.operand) == unit) continue;
      const uint32_t operand = memory_.value_of[pair.operand.index()];
      const uint32_t result = memory_.value_of[pair.result.index()];
      if (result == kNone || values_[result].bytes == 0 || values_[operand].bytes != values_[result].bytes) continue;
      units_[unit].reuses.push_back({operand, result});
    }
  }

  const Graph& graph_;
  const KernelFacts& kernels_;
  const memory::Roots roots_;
  GraphMemory memory_;
  std::vector<OrderUnit>& units_ = memory_.problem.units;
  std::vector<OrderValue>& values_ = memory_.problem.values;
  std::vector<uint32_t> unit_of_;                        // by node; kNone: a view
  std::vector<std::vector<uint32_t>> readers_of_input_;  // by graph input: units
  std::vector<TensorId> handed_out_;                     // roots that leave as what they are, ascending
  std::vector<uint32_t> before_updates_;                 // units that make guards, and host code
  std::vector<std::vector<TensorId>> filled_by_host_;    // by graph input: what host code leaves in it, in turn
  std::vector<std::vector<InPlace>> pairs_;              // by unit
};

}  // namespace

GraphMemory graph_memory(const Graph& graph, const KernelFacts& kernels) { return Builder(graph, kernels).build(); }

uint64_t bytes_of_inputs(const Graph& graph, InputKind kind) {
  uint64_t bytes = 0;
  for (const GraphInput& input : graph.inputs)
    if (input.kind == kind) bytes += aligned(static_cast<uint64_t>(bytes_of(graph.type(input.tensor))));
  return bytes;
}

uint64_t bytes_of_inputs(const Graph& graph) {
  uint64_t bytes = 0;
  for (const GraphInput& input : graph.inputs)
    bytes += aligned(static_cast<uint64_t>(bytes_of(graph.type(input.tensor))));
  return bytes;
}

std::vector<NodeId> node_order(const Graph& graph, const GraphMemory& memory, const UnitOrder& order) {
  std::vector<NodeId> out;
  std::vector<bool> done(graph.nodes.size(), false);
  std::vector<bool> in_unit(graph.nodes.size(), false);
  for (const std::vector<NodeId>& nodes : memory.nodes_of)
    for (NodeId node : nodes) in_unit[node.index()] = true;
  const auto emit = [&](NodeId node) {
    if (!done[node.index()]) out.push_back(node);
    done[node.index()] = true;
  };
  const auto emit_views_for = [&](NodeId node) {
    std::vector<NodeId> chain = {node};  // what is read through comes later
    for (size_t i = 0; i < chain.size(); ++i) {
      for (TensorId input : graph.nodes[chain[i].index()].inputs) {
        const NodeId maker = graph.tensors[input.index()].producer;
        if (maker.valid() && !in_unit[maker.index()] && !done[maker.index()]) chain.push_back(maker);
      }
    }
    for (size_t i = chain.size(); i-- > 1;) emit(chain[i]);
  };
  for (uint32_t unit : order) {
    for (NodeId node : memory.nodes_of[unit]) emit_views_for(node);
    for (NodeId node : memory.nodes_of[unit]) emit(node);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) emit(NodeId(n));  // views that only leave the step
  return out;
}

}  // namespace stepc
