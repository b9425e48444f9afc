#include "schedule/from_graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "schedule/graph_kernels.h"
#include "schedule/graph_places.h"
#include "schedule/graph_writer.h"

namespace stepc {

namespace {

// Draws of ATen's own go on where a generator stands: nothing is put back for them in the midst of a step.
void check_draws(const Graph& graph, const Trace& trace) {
  std::set<GeneratorId> put_back;
  for (const GeneratorLoad& load : trace.loads)
    if (load.before.index() > 0) put_back.insert(trace.states[load.state.index()].generator);
  for (const Node& node : graph.nodes)
    if (node.aten)
      for (const Arg& arg : node.aten->args)
        if (const auto* given = std::get_if<GeneratorArg>(&arg))
          USER_CHECK(!put_back.contains(given->generator), "{} draws from a generator whose state is put back",
                     node.op);
}

// Of a step on a device, without the inputs that lie in the host's memory: a report counts the device's.
Graph in_device_memory(const GraphKernels& kernels) {
  Graph graph = kernels.graph;
  std::vector<GraphInput> there;
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    if (!kernels.on_host[i]) there.push_back(std::move(graph.inputs[i]));
  graph.inputs = std::move(there);
  return graph;
}

}  // namespace

StepMemory memory_of(const Trace& trace) {
  StepMemory memory{trace.device, {}};
  for (const External& external : trace.externals)
    if (trace.storages[trace.values[external.value.index()].storage.index()].space == Space::kHost)
      memory.on_host.emplace(kind_of(external.owner), external.key);
  return memory;
}

std::string device_of(const GraphScheduleOptions& options) {
  return options.trace == nullptr ? options.memory.device : options.trace->device;
}

GraphSchedule schedule_graph(Graph graph, const GraphScheduleOptions& options) {
  if (options.trace != nullptr) check_draws(graph, *options.trace);
  GraphSchedule out;
  const GraphKernels kernels = choose_kernels(std::move(graph), options, out);
  const GraphPlaces places = plan_places(kernels, options.threads);
  GraphWriter(kernels, places, options, out).write();
  out.nodes = kernels.graph.nodes.size();
  for (const GraphTensor& tensor : kernels.graph.tensors)
    if (is_floating(tensor.type.dtype) && size_of(tensor.type.dtype) < size_of(out.narrowest))
      out.narrowest = tensor.type.dtype;
  const auto report_of = [&](const Graph& of) {
    return memory_report(of, places.graph_memory, places.order, places.layout.bytes);
  };
  out.memory = kernels.on_host.empty() ? report_of(kernels.graph) : report_of(in_device_memory(kernels));
  return out;
}

}  // namespace stepc
