#include "memory/report.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "ir/alignment.h"
#include "memory/order/live_bytes.h"

namespace stepc {
namespace {

constexpr std::array<std::string_view, kByteClasses> kNames = {"parameters",  "optimizer state", "buffers",
                                                               "batch",       "other inputs",    "gradients",
                                                               "activations", "temporaries",     "workspaces"};

ByteClass class_of(InputKind kind) {
  switch (kind) {
    case InputKind::kParameter:
      return ByteClass::kParameters;
    case InputKind::kGradient:
      return ByteClass::kGradients;
    case InputKind::kOptimizerState:
      return ByteClass::kOptimizerState;
    case InputKind::kBuffer:
      return ByteClass::kBuffers;
    case InputKind::kBatch:
    case InputKind::kIncoming:
    case InputKind::kHost:
      return ByteClass::kBatch;
    default:
      return ByteClass::kOtherInputs;
  }
}

// Gradients of parameters are what the update reads of the backward pass.
std::vector<ByteClass> classes_of_values(const Graph& graph, const GraphMemory& memory) {
  std::vector<bool> read_by_update(memory.problem.values.size(), false);
  for (const Node& node : graph.nodes)
    if (node.source.phase == Phase::kUpdate)
      for (TensorId input : node.inputs)
        if (memory.value_of[input.index()] != kNone) read_by_update[memory.value_of[input.index()]] = true;
  for (const GraphOutput& output : graph.outputs)
    if (output.kind == GraphOutput::Kind::kRebind && output.owner == InputKind::kGradient && output.tensor.valid())
      if (memory.value_of[output.tensor.index()] != kNone)
        read_by_update[memory.value_of[output.tensor.index()]] = true;
  std::vector<ByteClass> out;
  for (size_t v = 0; v < memory.tensor_of.size(); ++v) {
    const Phase phase = graph.producer(memory.tensor_of[v])->source.phase;
    if (phase == Phase::kForward)
      out.push_back(ByteClass::kActivations);
    else
      out.push_back(phase == Phase::kBackward && read_by_update[v] ? ByteClass::kGradients : ByteClass::kTemporaries);
  }
  return out;
}

std::vector<OpBytes> allocated_by(const Graph& graph, const GraphMemory& memory, const std::set<uint32_t>& values,
                                  uint32_t peak_unit) {
  std::map<std::string, OpBytes> ops;
  std::map<std::string, uint64_t> largest;
  const auto add = [&](std::string what, const std::string& module, uint64_t bytes) {
    if (bytes == 0) return;
    OpBytes& op = ops[what];
    if (bytes > largest[what]) {
      largest[what] = bytes;
      op.module = module;
    }
    ++op.count;
    op.bytes += bytes;
    op.what = std::move(what);
  };
  for (uint32_t value : values) {
    const Node& node = *graph.producer(memory.tensor_of[value]);
    add(str("{} {}", name_of(node.source.phase), node.op), node.source.module, memory.problem.values[value].bytes);
  }
  const Node& node = graph.nodes[memory.nodes_of[peak_unit][0].index()];
  add(str("workspace of {} {}", name_of(node.source.phase), node.op), node.source.module,
      memory.problem.units[peak_unit].workspace_bytes);
  std::vector<OpBytes> out;
  for (auto& [what, op] : ops) out.push_back(std::move(op));
  std::ranges::stable_sort(out, std::greater<>(), &OpBytes::bytes);
  return out;
}

}  // namespace

std::string_view name_of(ByteClass byte_class) { return kNames[static_cast<size_t>(byte_class)]; }

MemoryReport memory_report(const Graph& graph, const GraphMemory& memory, const UnitOrder& order,
                           uint64_t arena_bytes) {
  MemoryReport report;
  report.arena_bytes = arena_bytes;
  std::array<uint64_t, kByteClasses> always = {};
  for (const GraphInput& input : graph.inputs)
    always[static_cast<size_t>(class_of(input.kind))] +=
        aligned(static_cast<uint64_t>(bytes_of(graph.type(input.tensor))));

  // What takes over another's memory is one interval with it, and counts as what is there at the time.
  const std::vector<ByteClass> classes = classes_of_values(graph, memory);
  LiveBytes bytes(memory.problem);
  std::array<uint64_t, kByteClasses> live = always;
  std::map<std::string, uint64_t> modules;  // activations live now
  std::map<std::string, uint64_t> modules_at_peak;
  std::set<uint32_t> values, values_at_peak;  // live now
  const auto change = [&](uint32_t value, bool begins) {
    const uint64_t size = memory.problem.values[value].bytes;
    uint64_t& of_class = live[static_cast<size_t>(classes[value])];
    of_class = begins ? of_class + size : of_class - size;
    if (begins)
      values.insert(value);
    else
      values.erase(value);
    if (classes[value] != ByteClass::kActivations) return;
    uint64_t& of_module = modules[graph.producer(memory.tensor_of[value])->source.module];
    of_module = begins ? of_module + size : of_module - size;
  };
  for (size_t step = 0; step < order.size(); ++step) {
    const uint32_t unit = order[step];
    const OrderUnit& one = memory.problem.units[unit];
    std::vector<uint32_t> ended;
    bytes.for_each_reuse(unit, [&](uint32_t operand, uint32_t) {
      change(operand, false);
      ended.push_back(operand);
    });
    for (uint32_t value : one.makes) change(value, true);
    std::array<uint64_t, kByteClasses> now = live;
    now[static_cast<size_t>(ByteClass::kWorkspaces)] += one.workspace_bytes;
    uint64_t sum = 0;
    for (uint64_t of_class : now) sum += of_class;
    if (sum > report.peak_bytes) {
      report.peak_bytes = sum;
      report.peak_step = step;
      report.at_peak = now;
      modules_at_peak = modules;
      values_at_peak = values;
    }
    report.timeline.push_back(now);
    for (uint32_t value : one.reads)
      if (bytes.dies_at(value, unit) && std::ranges::find(ended, value) == ended.end()) change(value, false);
    for (uint32_t value : one.makes)
      if (memory.problem.values[value].users.empty() && !memory.problem.values[value].kept) change(value, false);
    bytes.run(unit);
  }
  if (!order.empty()) {
    const Node& node = graph.nodes[memory.nodes_of[order[report.peak_step]][0].index()];
    report.allocated = allocated_by(graph, memory, values_at_peak, order[report.peak_step]);
    report.peak_op = node.op;
    report.peak_node = str("{} {} in '{}'", name_of(node.source.phase), node.op, node.source.module);
  } else {
    report.at_peak = always;
    for (uint64_t of_class : always) report.peak_bytes += of_class;
  }
  for (const auto& [module, size] : modules_at_peak)
    if (size != 0) report.activations.push_back({module, size});
  std::ranges::stable_sort(report.activations, std::greater<>(), &ModuleBytes::bytes);
  return report;
}

std::string to_text(const MemoryReport& report, size_t modules) {
  const auto percent = [&](uint64_t bytes) {
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(report.peak_bytes, 1));
  };
  std::string out = str("peak {} at instruction {} of {}: {}\n", human_bytes(report.peak_bytes), report.peak_step + 1,
                        report.timeline.size(), report.peak_node);
  for (size_t c = 0; c < kByteClasses; ++c)
    if (report.at_peak[c] != 0)
      out += str("  {:<16} {:>12} {:>6.1f} %\n", kNames[c], human_bytes(report.at_peak[c]), percent(report.at_peak[c]));
  out += str("arena {}, for all that is not the program's own\n", human_bytes(report.arena_bytes));
  if (!report.activations.empty()) out += "activations by module\n";
  uint64_t rest = 0;
  for (size_t i = 0; i < report.activations.size(); ++i) {
    const auto& [module, bytes] = report.activations[i];
    if (i < modules)
      out += str("  {:<40} {:>12}\n", module.empty() ? "(outside of modules)" : module, human_bytes(bytes));
    else
      rest += bytes;
  }
  if (rest != 0)
    out += str("  {:<40} {:>12}\n", str("{} others", report.activations.size() - modules), human_bytes(rest));
  return out;
}

std::string allocated_text(const MemoryReport& report, size_t ops) {
  std::string out;
  for (size_t i = 0; i < std::min(ops, report.allocated.size()); ++i) {
    const OpBytes& op = report.allocated[i];
    const std::string where = op.module.empty() ? "outside of modules" : str("in '{}'", op.module);
    out += out.empty() ? "" : ", ";
    out += op.count == 1 ? str("{} {} {}", op.what, human_bytes(op.bytes), where)
                         : str("{} of {} {}, the largest {}", op.count, op.what, human_bytes(op.bytes), where);
  }
  return out;
}

}  // namespace stepc
