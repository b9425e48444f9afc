#include "python/values.h"

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <pybind11/stl.h>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "comm/ranks.h"
#include "python/op_rule_binding.h"

namespace stepc {

Arg number_of(const py::handle& number) {
  if (py::isinstance<py::bool_>(number)) return number.cast<bool>();
  if (py::isinstance<py::int_>(number)) return number.cast<int64_t>();
  return number.cast<double>();
}

py::object object_of(const Arg& number) {
  if (const auto* value = std::get_if<bool>(&number)) return py::bool_(*value);
  if (const auto* value = std::get_if<int64_t>(&number)) return py::int_(*value);
  return py::float_(std::get<double>(number));
}

std::vector<at::Tensor> tensors_of(const py::list& list) {
  std::vector<at::Tensor> out;
  out.reserve(list.size());
  for (const py::handle& item : list) out.push_back(item.is_none() ? at::Tensor() : THPVariable_Unpack(item.ptr()));
  return out;
}

py::list list_of(const std::vector<at::Tensor>& tensors) {
  py::list out(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    out[i] = tensors[i].defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[i])) : py::none();
  return out;
}

Config config_of(const py::object& chosen) {
  const auto text = [&](const char* name) { return chosen.attr(name).cast<std::string>(); };
  Config config;
  config.mode = parse_mode(text("mode"));
  config.capture = parse_capture(text("capture"));
  config.python = parse_python_mode(text("python"));
  config.weighs_pace = parse_pace(text("pace"));
  config.verify = parse_verify(text("verify"));
  config.memory_budget = parse_memory_budget(text("memory_budget"));
  const Fp8Recipe recipe = parse_fp8_recipe(text("fp8_recipe"));
  const py::object precision = chosen.attr("precision");
  if (!precision.is_none() && precision.cast<std::string>() == "fp8") config.fp8 = recipe;
  config.kernel_directory = text("kernel_directory");
  config.op_rules = given_op_rules();
  config.device_graphs = chosen.attr("device_graphs").cast<bool>();
  config.device_kernels = chosen.attr("device_kernels").cast<bool>();
  config.max_plans = chosen.attr("max_plans").cast<int>();
  config.max_recordings = chosen.attr("max_recordings").cast<int>();
  return config;
}

Parallel::Elastic elastic_of(const py::dict& chosen) {
  Parallel::Elastic elastic;
  if (chosen.contains("stall_seconds")) elastic.stall_seconds = chosen["stall_seconds"].cast<double>();
  if (chosen.contains("check_every")) elastic.check_every = chosen["check_every"].cast<int64_t>();
  if (chosen.contains("output_dir")) elastic.output_dir = chosen["output_dir"].cast<std::string>();
  return elastic;
}

namespace {
// A dict of stepc/ranks.py, or None.
std::optional<Parallel> parallel_of(const py::object& chosen) {
  if (chosen.is_none()) return std::nullopt;
  Parallel parallel;
  for (const auto& [name, size] : chosen["axes"].cast<std::vector<std::pair<std::string, int64_t>>>())
    parallel.axes.push_back({name, size});
  parallel.is_searched = chosen["is_searched"].cast<bool>();
  parallel.zero = chosen["zero"].cast<int>();
  parallel.sequence_parallel = chosen["sequence_parallel"].cast<bool>();
  parallel.means_by_rank = chosen["means_by_rank"].cast<bool>();
  parallel.reduce = parse_reduce(chosen["reduce"].cast<std::string>());
  parallel.context = parse_context(chosen["context"].cast<std::string>());
  parallel.overlap = chosen["overlap"].cast<bool>();
  parallel.micro_batches = chosen["micro_batches"].cast<int64_t>();
  parallel.stages = chosen["stages"].cast<std::vector<std::string>>();
  parallel.order = chosen["order"].cast<std::string>();
  parallel.chunks = chosen["chunks"].cast<int64_t>();
  for (auto& [pattern, dims] :
       chosen["shard"].cast<std::vector<std::pair<std::string, std::map<size_t, std::string>>>>())
    parallel.rules.push_back({pattern, dims});
  parallel.batch = parse_batch(chosen["batch"].cast<std::string>());
  parallel.batch_dims = chosen["batch_dims"].cast<std::map<std::string, std::optional<int64_t>>>();
  parallel.elastic = elastic_of(chosen["elastic"]);
  parallel.ranks = chosen["ranks"].cast<std::shared_ptr<Ranks>>();
  return parallel;
}
}  // namespace

Config config_on(const py::object& chosen, const py::object& parallel) {
  Config config = config_of(chosen);
  config.parallel = parallel_of(parallel);
  return config;
}

py::dict dict_of(const Stats& s) {
  py::dict out;
  const auto put = [&](const char* name, const auto& value) { out[name] = py::cast(value); };
  put("nodes", s.nodes);
  put("instructions", s.instructions);
  put("guards", s.guards);
  put("arena_bytes", s.arena_bytes);
  put("live_lower_bound_bytes", s.live_lower_bound_bytes);
  put("planned_peak_bytes", s.planned_peak_bytes);
  put("measured_peak_bytes", s.measured_peak_bytes);
  put("eager_peak_bytes", s.eager_peak_bytes);
  put("verification_bytes", s.verification_bytes);
  put("state_bytes", s.state_bytes);
  put("device_graphs", s.device_graphs);
  put("served_allocations", s.served_allocations);
  put("unplanned_allocations", s.unplanned_allocations);
  put("recordings", s.recordings);
  put("replays", s.replays);
  put("recorded_replays", s.recorded_replays);
  put("plain_verifications", s.plain_verifications);
  put("eager_verifications", s.eager_verifications);
  put("float64_verifications", s.float64_verifications);
  put("eager_calls", s.eager_calls);
  put("verifications", s.verifications);
  put("guard_misses", s.guard_misses);
  put("checks", s.checks);
  put("failed_checks", s.failed_checks);
  put("departures", s.departures);
  put("traced", s.traced);
  put("known_updates", s.known_updates);
  put("plans", s.plans);
  put("late_plans", s.late_plans);
  put("graph_nodes", s.graph_nodes);
  put("kernels", s.kernels);
  put("capture_seconds", s.capture_seconds);
  put("settle_seconds", s.settle_seconds);
  put("planning_seconds", s.planning_seconds);
  put("verify_seconds", s.verify_seconds);
  put("shadow_seconds", s.shadow_seconds);
  put("execute_seconds", s.execute_seconds);
  put("device_seconds", s.device_seconds);
  put("device_replays", s.device_replays);
  put("auto_budget", s.auto_budget);
  put("verified_with", s.verified_with);
  put("layout_algorithm", s.layout_algorithm);
  put("opaque_calls", s.opaque_calls);
  put("warnings", s.warnings);
  return out;
}

}  // namespace stepc
