#include "loops/lower/group_parts.h"

#include <algorithm>
#include <map>
#include <string>

#include "ops/unconnected_parts.h"

namespace stepc {

namespace {

// `nodes` of the group, with the inputs that they read; the outputs come later.
class PartBuilder {
 public:
  PartBuilder(const Graph& group, const std::vector<NodeId>& nodes) : group_(group) {
    std::vector<bool> is_read(group.tensors.size(), false);
    for (NodeId id : nodes)
      for (TensorId input : group.nodes[id.index()].inputs) is_read[input.index()] = true;
    for (uint32_t i = 0; i < group.inputs.size(); ++i) {
      const TensorId input = group.inputs[i].tensor;
      if (!is_read[input.index()]) continue;
      now_[input] = part_.graph.add_input(group.inputs[i], group.type(input));
      part_.inputs.push_back(i);
    }
    for (NodeId id : nodes) {
      Node node = group.nodes[id.index()];
      std::vector<TensorType> types;
      for (TensorId made : node.outputs) types.push_back(group.type(made));
      for (TensorId& input : node.inputs) input = now_.at(input);
      const std::vector<TensorId> before = node.outputs;
      const NodeId added = part_.graph.add_node(std::move(node), types);
      for (size_t k = 0; k < before.size(); ++k) now_[before[k]] = part_.graph.nodes[added.index()].outputs[k];
    }
  }
  [[nodiscard]] bool makes(TensorId tensor) const {
    return now_.contains(tensor) && group_.producer(tensor) != nullptr;
  }
  void add_output(uint32_t place) {
    GraphOutput output = group_.outputs[place];
    output.tensor = now_.at(output.tensor);
    part_.graph.outputs.push_back(std::move(output));
    part_.outputs.push_back(place);
  }
  GroupPart take() { return std::move(part_); }

 private:
  const Graph& group_;
  GroupPart part_;
  std::map<TensorId, TensorId> now_;
};

std::vector<NodeId> needed_for(const Graph& group, const std::vector<uint32_t>& outputs) {
  std::vector<bool> is_needed(group.nodes.size(), false);
  const auto need = [&](TensorId tensor) {
    if (const NodeId producer = group.tensors[tensor.index()].producer; producer.valid())
      is_needed[producer.index()] = true;
  };
  for (uint32_t place : outputs) need(group.outputs[place].tensor);
  std::vector<NodeId> nodes;
  for (size_t n = group.nodes.size(); n-- > 0;) {
    if (!is_needed[n]) continue;
    nodes.emplace_back(n);
    for (TensorId input : group.nodes[n].inputs) need(input);
  }
  std::ranges::reverse(nodes);
  return nodes;
}

// The parts by number, those of equal loops next to each other.
std::vector<size_t> equal_ones_together(const std::vector<LoopProgram>& programs) {
  std::map<std::string, size_t> first;
  std::vector<size_t> rank, order;
  for (size_t p = 0; p < programs.size(); ++p) {
    rank.push_back(first.try_emplace(to_text(programs[p]), p).first->second);
    order.push_back(p);
  }
  std::ranges::stable_sort(order, {}, [&](size_t p) { return rank[p]; });
  return order;
}

}  // namespace

std::vector<GroupPart> parts_of(const Graph& group) {
  const std::vector<std::vector<NodeId>> nodes = unconnected_parts(group);
  if (nodes.size() < 2) return {};
  std::vector<PartBuilder> builders;
  for (const std::vector<NodeId>& part : nodes) builders.emplace_back(group, part);
  std::vector<uint32_t> left;  // numbers that no part makes
  for (uint32_t place = 0; place < group.outputs.size(); ++place) {
    const auto maker = std::ranges::find_if(
        builders, [&](const PartBuilder& part) { return part.makes(group.outputs[place].tensor); });
    if (maker == builders.end())
      left.push_back(place);
    else
      maker->add_output(place);
  }
  if (!left.empty()) {
    const size_t first = builders.size();
    for (const std::vector<NodeId>& part : unconnected_parts(group, needed_for(group, left)))
      builders.emplace_back(group, part);
    for (uint32_t place : left)
      std::ranges::find_if(builders.begin() + static_cast<ptrdiff_t>(first), builders.end(),
                           [&](const PartBuilder& part) { return part.makes(group.outputs[place].tensor); })
          ->add_output(place);
  }
  std::vector<GroupPart> out;
  for (PartBuilder& builder : builders) out.push_back(builder.take());
  std::erase_if(out, [](const GroupPart& part) { return part.outputs.empty(); });
  return out;
}

LoopProgram side_by_side(const Graph& group, const std::vector<GroupPart>& parts,
                         const std::vector<LoopProgram>& programs) {
  LoopProgram out;
  const auto inputs = static_cast<uint32_t>(group.inputs.size());
  for (const GraphInput& input : group.inputs)
    out.buffers.push_back({LoopBuffer::Kind::kInput, group.type(input.tensor).dtype, 0, 0});
  for (const GraphOutput& output : group.outputs)
    out.buffers.push_back({LoopBuffer::Kind::kOutput, group.type(output.tensor).dtype, 0, 0});
  std::vector<size_t> readers(inputs, 0);
  for (const GroupPart& part : parts)
    for (uint32_t input : part.inputs) ++readers[input];
  for (const size_t p : equal_ones_together(programs)) {
    std::vector<uint32_t> places;  // by buffer of the part
    for (size_t b = 0; b < programs[p].buffers.size(); ++b) {
      LoopBuffer buffer = programs[p].buffers[b];
      const size_t own_inputs = parts[p].inputs.size();
      if (b < own_inputs + parts[p].outputs.size()) {
        places.push_back(b < own_inputs ? parts[p].inputs[b] : inputs + parts[p].outputs[b - own_inputs]);
        out.buffers[places.back()].count = std::max(out.buffers[places.back()].count, buffer.count);
        continue;
      }
      if (buffer.kind == LoopBuffer::Kind::kScratch) buffer.scratch_byte += out.scratch_bytes;
      places.push_back(static_cast<uint32_t>(out.buffers.size()));
      out.buffers.push_back(buffer);
    }
    out.scratch_bytes += programs[p].scratch_bytes;
    for (LoopPhase phase : programs[p].phases) {
      for (LoopInstruction& one : phase.instructions)
        if (one.op == LoopOp::kLoad || one.op == LoopOp::kStore) one.buffer = places[one.buffer];
      out.phases.push_back(std::move(phase));
    }
    for (const auto& [input, output] : programs[p].in_place)
      if (readers[places[input]] == 1) out.in_place.emplace_back(places[input], places[output]);
  }
  std::ranges::sort(out.in_place, {}, [](const auto& pair) { return std::pair(pair.second, pair.first); });
  return out;
}

}  // namespace stepc
