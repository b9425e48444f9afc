#include "runtime/unit_runner.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/constants.h"
#include "base/check.h"
#include "ir/alignment.h"
#include "runtime/aten_ops.h"
#include "runtime/blocked_calls.h"

namespace stepc {

namespace {

// Calls run below autograd and autocast, where they were recorded.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_autocast{c10::autocast_dispatch_keyset};
};

at::Tensor tensor_on(std::byte* memory, const TensorType& type, const Shape& strides) {
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes_of(type),
                             c10::DataPtr(memory, c10::Device(c10::kCPU)), nullptr, false);
  at::Tensor tensor = at::empty({0}, scalar_type_of(type.dtype));
  tensor.set_(storage, 0, type.shape, strides);
  return tensor;
}

// All of `memory`, which is dense, as another tensor of as many bytes.
at::Tensor as_type(const at::Tensor& memory, const TensorType& type) {
  const at::Tensor flat = memory.as_strided({memory.numel()}, {1}, memory.storage_offset());
  return flat.view(scalar_type_of(type.dtype)).view(type.shape);
}

bool is_at(const at::Tensor& tensor, const at::Tensor& place) {
  return place.defined() && tensor.const_data_ptr() == place.const_data_ptr() && tensor.strides() == place.strides();
}

}  // namespace

UnitRunner::UnitRunner(const GraphPlan& plan)
    : plan_(plan),
      values_(plan.graph.tensors.size()),
      views_of_(plan.graph.tensors.size()),
      written_to_(plan.graph.inputs.size()),
      learnt_(plan.units.size(), 0) {
  const Graph& graph = plan.graph;
  for (const Node& node : graph.nodes)
    for (TensorId output : node.outputs)
      if (plan.places[output.index()].kind == Place::Kind::kView)
        views_of_[node.inputs[0].index()].push_back(graph.tensors[output.index()].producer);
  std::vector<bool> lasts(graph.tensors.size(), false);  // producers come before their views
  for (size_t t = 0; t < lasts.size(); ++t) {
    const Place& place = plan.places[t];
    lasts[t] = place.kind == Place::Kind::kArena;
    if (place.kind == Place::Kind::kInput) written_to_[place.input].emplace_back(t);
    if (place.kind == Place::Kind::kView) lasts[t] = lasts[graph.producer(TensorId(t))->inputs[0].index()];
    if (!lasts[t]) of_step_.emplace_back(t);
  }
}

UnitRunner::Step::Step(UnitRunner& runner, Arena& arena) : runner_(runner) {
  arena.grow_to(runner.plan_.arena_bytes);
  runner.bind_arena(arena.base());
  runner.memory_.begin_step(arena.base(), !runner.learnt_.empty());
}

UnitRunner::Step::~Step() {
  for (TensorId tensor : runner_.of_step_) runner_.values_[tensor.index()].reset();
}

void UnitRunner::bind_arena(std::byte* arena) {
  if (arena == arena_) return;
  const BelowAutograd below;
  arena_ = arena;
  for (size_t t = 0; t < values_.size(); ++t) {
    const Place& place = plan_.places[t];
    if (place.kind != Place::Kind::kArena) continue;
    values_[t] = tensor_on(arena + place.offset, plan_.graph.type(TensorId(t)), place.strides);
    bind_views_of(TensorId(t));
  }
}

void UnitRunner::bind_input(size_t input, const at::Tensor& tensor) {
  const BelowAutograd below;
  const TensorId id = plan_.graph.inputs[input].tensor;
  values_[id.index()] = tensor;
  bind_views_of(id);
  for (TensorId written : written_to_[input]) {
    values_[written.index()] = as_type(tensor, plan_.graph.type(written));
    bind_views_of(written);
  }
}

void UnitRunner::bind_views_of(TensorId tensor) {
  for (NodeId id : views_of_[tensor.index()]) {
    const Node& node = plan_.graph.nodes[id.index()];
    const TensorId view = node.outputs[0];
    values_[view.index()] = run_aten_op(node, {values_[tensor.index()]}, {plan_.graph.type(view)})[0];
    bind_views_of(view);
  }
}

std::vector<at::Tensor> UnitRunner::values_of(const std::vector<TensorId>& tensors) const {
  std::vector<at::Tensor> out;
  out.reserve(tensors.size());
  for (TensorId tensor : tensors) out.push_back(values_[tensor.index()]);
  return out;
}

void UnitRunner::run(size_t begin, size_t end, RunTimes* times) {
  const bool learns = !learnt_.empty();
  const AllocationScope scope(memory_, /*watch_frees=*/learns);
  const BelowAutograd below;
  for (size_t unit = begin; unit < end; ++unit) {
    if (times == nullptr)
      run_unit(plan_.units[unit]);
    else
      time_unit(unit, *times);
    if (learns) learnt_[unit] = memory_.wanted_scratch_bytes();
  }
}

void UnitRunner::time_unit(size_t unit, RunTimes& times) {
  ran_blocked_ = false;
  const double begin = times.now();
  run_unit(plan_.units[unit]);
  times.add({unit, begin, times.now(), ran_blocked_});
}

void UnitRunner::run_unit(const Unit& unit) {
  memory_.begin_unit(unit.scratch_offset, unit.scratch_bytes);
  note_places(unit);
  if (unit.kernel) return run_call(unit, *unit.kernel);
  if (unit.products) {
    ran_blocked_ = true;
    return run_call(unit, *unit.products);
  }
  for (NodeId id : unit.nodes) {
    const Node& node = plan_.graph.nodes[id.index()];
    memory_.expect(results_of(node));
    place_results(node, run_node(node, unit.opaque));
  }
  for (NodeId id : unit.nodes)
    for (TensorId output : plan_.graph.nodes[id.index()].outputs)
      if (plan_.places[output.index()].kind == Place::Kind::kNowhere) values_[output.index()].reset();
}

template <class Call>
void UnitRunner::run_call(const Unit& unit, const Call& call) {
  for (TensorId output : unit.outputs) make_own(output);
  memory_.note_use(unit.scratch_offset + call.scratch_bytes());
  call.run(values_of(unit.inputs), values_of(unit.outputs), arena_ + unit.scratch_offset);
}

void UnitRunner::note_places(const Unit& unit) {
  for (TensorId output : unit.outputs) {
    const Place& place = plan_.places[output.index()];
    if (place.kind == Place::Kind::kArena)
      memory_.note_use(place.offset + aligned(static_cast<uint64_t>(bytes_of(plan_.graph.type(output)))));
  }
}

// What the node's call may ask memory for.
std::vector<UnitMemory::Result> UnitRunner::results_of(const Node& node) const {
  std::vector<UnitMemory::Result> results;
  for (TensorId output : node.outputs) {
    const Place& place = plan_.places[output.index()];
    const auto bytes = static_cast<size_t>(bytes_of(plan_.graph.type(output)));
    if (place.kind == Place::Kind::kOwn) results.push_back({bytes, nullptr});
    if (place.kind == Place::Kind::kArena) results.push_back({bytes, arena_ + place.offset});
  }
  return results;
}

void UnitRunner::make_own(TensorId tensor) {
  at::Tensor& value = values_[tensor.index()];
  const Place& place = plan_.places[tensor.index()];
  if (place.kind != Place::Kind::kOwn || value.defined()) return;
  const TensorType& type = plan_.graph.type(tensor);
  memory_.keep_next();
  memory_.note_kept(static_cast<size_t>(bytes_of(type)));
  value = at::empty_strided(type.shape, place.strides, scalar_type_of(type.dtype));
  bind_views_of(tensor);
}

std::vector<at::Tensor> UnitRunner::run_node(const Node& node, const std::optional<OpaqueCall>& opaque) {
  const std::vector<at::Tensor> inputs = values_of(node.inputs);
  if (opaque) {
    if (!node.aten->writes.empty())
      for (TensorId output : node.outputs) make_own(output);
    return opaque->run(inputs, values_of(node.outputs));
  }
  if (auto results = run_blocked(node, inputs, plan_.micro_kernels)) {
    ran_blocked_ = true;
    return std::move(*results);
  }
  std::vector<TensorType> types;
  for (TensorId output : node.outputs) types.push_back(plan_.graph.type(output));
  if (!overwrites(node)) return run_aten_op(node, inputs, types);
  make_own(node.outputs[0]);
  return run_aten_op(node, inputs, types, values_[node.outputs[0].index()]);
}

void UnitRunner::place_results(const Node& node, std::vector<at::Tensor> results) {
  const std::vector<at::Tensor> places = values_of(node.outputs);
  for (size_t r = 0; r < results.size(); ++r) {
    // A call asks for memory in an order of its own, and lays it out as it likes: one result may lie where another
    // belongs, or in its place in another layout.
    const bool in_the_way = std::ranges::any_of(places, [&](const at::Tensor& place) {
      return place.defined() && place.numel() > 0 && place.const_data_ptr() == results[r].const_data_ptr();
    });
    if (in_the_way && !is_at(results[r], places[r])) results[r] = results[r].clone();
  }
  for (size_t r = 0; r < results.size(); ++r) {
    at::Tensor& value = values_[node.outputs[r].index()];
    const Place& place = plan_.places[node.outputs[r].index()];
    const bool is_alone = results[r].storage().use_count() == 1 && results[r].storage().nbytes() == results[r].nbytes();
    if (place.kind == Place::Kind::kNowhere) {
      value = std::move(results[r]);
    } else if (place.kind == Place::Kind::kOwn && !value.defined() && is_alone && !is_in_arena(results[r]) &&
               results[r].strides() == c10::IntArrayRef(place.strides)) {
      value = std::move(results[r]);
      memory_.note_kept(value.nbytes());
      bind_views_of(node.outputs[r]);
    } else {
      make_own(node.outputs[r]);
      if (!is_at(results[r], value)) value.copy_(results[r]);
    }
  }
}

bool UnitRunner::is_in_arena(const at::Tensor& tensor) const {
  const auto* memory = static_cast<const std::byte*>(tensor.const_data_ptr());
  return memory >= arena_ && memory < arena_ + plan_.arena_bytes;
}

void UnitRunner::apply_what_was_learnt(GraphPlan& plan) {
  if (learnt_.empty()) return;
  const std::vector<uint64_t> learnt = std::exchange(learnt_, {});
  const bool is_known = std::ranges::equal(
      learnt, plan.units, [](uint64_t bytes, const Unit& unit) { return aligned(bytes) <= unit.scratch_bytes; });
  if (is_known) return;
  grow_scratch(plan, learnt);
  arena_ = nullptr;  // bound anew
}

}  // namespace stepc
