#include "ops/communication.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "base/text.h"

namespace stepc {

std::optional<Communication> communication_of(std::string_view op, const Attrs& attrs, double operand_bytes) {
  const OpDef* row = find_op(op);
  if (row == nullptr || !exchanges(row->collective)) return std::nullopt;
  const auto ranks = static_cast<double>(attrs.get<int64_t>("ranks"));
  const bool gathers = row->collective == Collective::kAllGather;
  const double times = row->collective == Collective::kAllReduce ? 2 : 1;
  const bool sends_once = row->collective == Collective::kRotate;
  Communication one{std::string(op), {}, 1, sends_once ? 1 : times * (ranks - 1), 0, 0};
  for (int64_t axis : attrs.get<Shape>("axes")) one.axes.push_back(static_cast<Axis>(axis));
  one.bytes = sends_once ? operand_bytes : times * (ranks - 1) * (gathers ? operand_bytes : operand_bytes / ranks);
  return one;
}

std::vector<Communication> summed(const std::vector<Communication>& all) {
  std::map<std::pair<std::string, std::vector<Axis>>, Communication> sums;
  for (const Communication& one : all) {
    Communication& sum = sums[{one.op, one.axes}];
    sum.op = one.op;
    sum.axes = one.axes;
    sum.count += one.count;
    sum.hops += one.hops;
    sum.bytes += one.bytes;
    sum.seconds += one.seconds;
  }
  std::vector<Communication> out;
  for (auto& [key, sum] : sums) out.push_back(std::move(sum));
  return out;
}

std::vector<Communication> communication_of(const Graph& local) {
  std::vector<Communication> all;
  for (const Node& node : local.nodes) {
    if (!exchanges(collective_of(node))) continue;
    double bytes = 0;
    for (TensorId input : node.inputs) bytes += static_cast<double>(bytes_of(local.type(input)));
    if (auto one = communication_of(node.op, node.attrs, bytes)) all.push_back(std::move(*one));
  }
  return summed(all);
}

std::string to_text(const std::vector<Axis>& axes, const Mesh& mesh) {
  std::vector<std::string> names;
  for (Axis axis : axes) names.push_back(mesh.axes[axis].name);
  return str("{}", fmt::join(names, "+"));
}

std::string to_text(const std::vector<Communication>& communication, const Mesh& mesh, std::string_view head) {
  if (communication.empty()) return str("{} nothing\n", head);
  constexpr std::string_view kAlong = "along";
  size_t kinds = head.size(), along = kAlong.size();
  for (const Communication& one : communication) {
    kinds = std::max(kinds, one.op.size() + 2);
    along = std::max(along, to_text(one.axes, mesh).size());
  }
  const bool is_priced = std::ranges::any_of(communication, [](const Communication& one) { return one.seconds > 0; });
  std::string out = str("{:<{}}  {:<{}}  {:>7}  {:>10}{}\n", head, kinds, kAlong, along, "count", "bytes",
                        is_priced ? "          time" : "");
  for (const Communication& one : communication) {
    out += str("  {:<{}}  {:<{}}  {:>7}  {:>10}", one.op, kinds - 2, to_text(one.axes, mesh), along, one.count,
               human_bytes(static_cast<uint64_t>(one.bytes)));
    out += is_priced ? str("  {:>9.3f} ms\n", one.seconds * 1e3) : "\n";
  }
  return out;
}

}  // namespace stepc
