#include "passes/partition/shardings/sharding_report.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "base/text.h"
#include "ops/op_def.h"

namespace stepc {

namespace {

constexpr std::array<std::string_view, 3> kDataAxes = {"dp_replicate", "dp_shard", "cp"};

struct Row {
  std::string value, type, lies, op, module, why;
};

std::string lies(const Graph& graph, TensorId id) {
  const auto& sharding = graph.tensors[id.index()].sharding;
  if (!sharding || sharding->is_whole()) return "whole";
  return to_text(*sharding, graph.shape(id), graph.mesh);
}

std::string reason(const ShardedStep& step, size_t node) { return node < step.why.size() ? step.why[node] : ""; }

// Of a graph input, whose sharding follows from nothing in the step: what the strategy gives it.
std::string reason(const Graph& graph, const GraphInput& input) {
  const auto& sharding = graph.tensors[input.tensor.index()].sharding;
  std::vector<std::string> parts;
  for (Axis axis = 0; axis < graph.mesh.axes.size(); ++axis) {
    const std::string& name = graph.mesh.axes[axis].name;
    if (sharding && sharding->partial_over(axis)) parts.push_back(str("{}: each rank adds up its own", name));
    if (!sharding || !sharding->splits(axis)) continue;
    const bool is_data = std::ranges::find(kDataAxes, name) != kDataAxes.end();
    parts.push_back(str("{}: {}", name,
                        input.kind == InputKind::kBatch ? "rows of the batch"
                        : is_data                       ? "shards of zero"
                                                        : "as the matmuls that use it, or a rule"));
  }
  return parts.empty() ? "every rank has it" : str("{}", fmt::join(parts, "; "));
}

std::string where(const Node& node) {
  return str("{}{}{}", name_of(node.source.phase), node.source.module.empty() ? "" : " ", node.source.module);
}

bool is_split_along(const Graph& graph, const Node& node, Axis axis) {
  const auto splits = [&](TensorId id) {
    const auto& sharding = graph.tensors[id.index()].sharding;
    return sharding && sharding->splits(axis);
  };
  return std::ranges::any_of(node.inputs, splits) || std::ranges::any_of(node.outputs, splits);
}

// Matmuls, attention and what holds a matmul: what a kernel of our own is worth for; and opaque calls, of which nobody
// knows how much they do.
bool is_heavy(const Node& node) { return node.aten || op_def(node.op).kernel != OwnKernel::kNone; }

// The axes of each kind of which none splits the node.
std::vector<std::string> whole_along(const Graph& graph, const Node& node) {
  std::vector<std::string> out;
  for (const bool is_data : {true, false}) {
    std::vector<std::string> names;
    bool is_split = false;
    for (Axis axis = 0; axis < graph.mesh.axes.size(); ++axis) {
      const std::string& name = graph.mesh.axes[axis].name;
      if ((std::ranges::find(kDataAxes, name) != kDataAxes.end()) != is_data) continue;
      names.push_back(name);
      is_split |= is_split_along(graph, node, axis);
    }
    if (!is_split) out.insert(out.end(), names.begin(), names.end());
  }
  return out;
}

}  // namespace

std::string shardings_text(const ShardedStep& step) {
  const Graph& graph = step.graph;
  std::vector<Row> rows;
  for (const GraphInput& input : graph.inputs)
    rows.push_back({str("%{}", input.tensor), to_text(graph.type(input.tensor)), lies(graph, input.tensor), "input",
                    str("{} {}", name_of(input.kind), input.key), reason(graph, input)});
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (TensorId output : node.outputs)
      rows.push_back({str("%{}", output), to_text(graph.type(output)), lies(graph, output), node.op, where(node),
                      reason(step, n)});
  }
  std::array<size_t, 5> width = {};
  for (const Row& row : rows) {
    const std::array<size_t, 5> sizes = {row.value.size(), row.type.size(), row.lies.size(), row.op.size(),
                                         row.module.size()};
    for (size_t i = 0; i < sizes.size(); ++i) width[i] = std::max(width[i], sizes[i]);
  }
  std::string out = str("mesh {}\n", to_text(graph.mesh));
  for (const Row& row : rows)
    out += str("{:<{}}  {:<{}}  {:<{}}  {:<{}}  {:<{}}  {}\n", row.value, width[0], row.type, width[1], row.lies,
               width[2], row.op, width[3], row.module, width[4], row.why);
  return out;
}

std::vector<WholeWork> whole_work(const ShardedStep& step) {
  const Graph& graph = step.graph;
  std::vector<WholeWork> out;
  double flops = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!is_heavy(node)) continue;
    const double own = node.aten ? 0 : flops_of(op_def(node.op), call_of(graph, node));
    flops += own;
    WholeWork one{NodeId(n), whole_along(graph, node), own, 0, reason(step, n)};
    if (one.axes.empty()) continue;
    for (TensorId input : node.inputs) one.bytes += static_cast<uint64_t>(bytes_of(graph.type(input)));
    for (TensorId output : node.outputs) one.bytes += static_cast<uint64_t>(bytes_of(graph.type(output)));
    out.push_back(std::move(one));
  }
  for (WholeWork& one : out) one.share = flops > 0 ? one.share / flops : 0;
  std::ranges::stable_sort(out, std::greater(), &WholeWork::share);
  return out;
}

std::string to_text(const std::vector<WholeWork>& whole, const ShardedStep& step) {
  if (whole.empty()) return "every matmul, attention and opaque call is split\n";
  const auto along = [](const WholeWork& one) { return str("{}", fmt::join(one.axes, "+")); };
  size_t width = 0, axes = 5;
  for (const WholeWork& one : whole) {
    width = std::max(width, where(step.graph.nodes[one.node.index()]).size());
    axes = std::max(axes, along(one).size());
  }
  std::string out = str("{:<22}  {:<{}}  {:>7}  {:>11}  {:<{}}  {}\n", "whole on every rank", "of", width, "flops",
                        "bytes", "along", axes, "why");
  for (const WholeWork& one : whole) {
    const Node& node = step.graph.nodes[one.node.index()];
    out += str("  {:<20}  {:<{}}  {:>5.1f} %  {:>11}  {:<{}}  {}\n", node.op, where(node), width, 100 * one.share,
               human_bytes(one.bytes), along(one), axes, one.why);
  }
  return out;
}

std::vector<Padded> padded_inputs(const Graph& local) {
  std::vector<Padded> out;
  for (const GraphInput& input : local.inputs) {
    if (!input.part || (input.kind != InputKind::kBatch && input.kind != InputKind::kParameter)) continue;
    const auto& [shape, sharding] = *input.part;
    for (size_t d = 0; d < shape.size(); ++d) {
      Padded one{input.kind, input.key, 0, d, {}, 1, local_extent(sharding.dims[d], shape[d], local.mesh)};
      for (const Piece& piece : sharding.dims[d]) {
        one.parts.push_back(piece.extent);
        one.ranks *= local.mesh.size(piece.axes);
      }
      if (one.local * one.ranks == shape[d]) continue;
      const auto alike = std::ranges::find_if(out, [&](Padded other) {
        other.key = one.key, other.more = 0;
        return other == one;
      });
      if (alike != out.end())
        ++alike->more;
      else
        out.push_back(std::move(one));
    }
  }
  return out;
}

std::string to_text(const std::vector<Padded>& padded) {
  std::string out;
  for (const Padded& one : padded) {
    const std::string more = one.more == 0 ? "" : str(" and {} more", one.more);
    out += str("padded: {} '{}'{}, dimension {}: {} over {} ranks are {} on each\n", name_of(one.kind), one.key, more,
               one.dim, fmt::join(one.parts, " x "), one.ranks, one.local);
  }
  return out;
}

}  // namespace stepc
