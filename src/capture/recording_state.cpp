#include "capture/recording_state.h"

#include <algorithm>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include "aten/constants.h"
#include "base/check.h"
#include "base/module_scope.h"

namespace stepc {

namespace {
std::string op_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::string describe(const at::Tensor& tensor) {
  return str("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

bool is_dense_cpu(const at::Tensor& tensor) {
  return tensor.layout() == c10::Layout::Strided && tensor.device().is_cpu() && tensor.has_storage();
}

// Operators whose result is memory that nobody has written yet.
bool makes_unfilled(const std::string& op) {
  return op.starts_with("aten::empty") || op.starts_with("aten::new_empty");
}

Value window_of(const at::Tensor& tensor, StorageId storage) {
  Value value;
  value.storage = storage;
  value.dtype = dtype_of(tensor.scalar_type());
  value.sizes = tensor.sizes().vec();
  value.strides = tensor.strides().vec();
  value.offset = tensor.storage_offset();
  value.conj = tensor.is_conj();
  value.neg = tensor.is_neg();
  return value;
}

template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) f(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor.has_value()) f(*tensor);
  }
}

// Arguments that a kernel changes although its schema does not say so: batch norm's running statistics.
constexpr std::pair<std::string_view, std::pair<size_t, size_t>> kUndeclaredWrites[] = {
    {"aten::native_batch_norm", {3, 4}}, {"aten::batch_norm_update_stats", {1, 2}}};

bool is_written(const std::string& op, const c10::Argument& argument, size_t index) {
  if (argument.alias_info() != nullptr) return argument.alias_info()->isWrite();
  for (const auto& [name, range] : kUndeclaredWrites)
    if (name == op && range.first <= index && index <= range.second) return true;
  return false;
}
}  // namespace

RecordingState::RecordingState(const std::vector<OwnedTensor>& owned) {
  for (const OwnedTensor& one : owned) {
    OwnedMeta meta{one.owner, one.key, {}, nullptr, std::nullopt, false};
    if (one.tensor.defined() && is_dense_cpu(one.tensor)) {
      meta.window = window_of(one.tensor, {});
      meta.storage = one.tensor.storage().unsafeGetStorageImpl();
      meta.weak = one.tensor.storage().getWeakStorageImpl();
      // Tied parameters: the first owner names the storage.
      owned_by_storage_.try_emplace(meta.storage, static_cast<int>(owned_.size()));
    }
    owned_.push_back(std::move(meta));
  }
}

void RecordingState::obstacle(std::string reason) {
  if (std::find(obstacles_.begin(), obstacles_.end(), reason) == obstacles_.end())
    obstacles_.push_back(std::move(reason));
}

// ---- storages and values

StorageId RecordingState::track(const at::Tensor& tensor, int owned) {
  const c10::Storage& storage = tensor.storage();
  const StorageId id(tracked_.size());
  TrackedStorage tracked{storage.getWeakStorageImpl(), {}, owned, -1, -1, owned >= 0};
  if (owned < 0)
    if (const auto event = log_.find_live(storage.data())) tracked.allocation = static_cast<ssize_t>(*event);
  tracked_.push_back(std::move(tracked));
  ids_[storage.unsafeGetStorageImpl()] = id;
  trace_.storages.push_back({storage.nbytes(), owned >= 0, false});
  return id;
}

ValueId RecordingState::value_on(StorageId storage, const at::Tensor& tensor) {
  TrackedStorage& tracked = tracked_[storage.index()];
  if (trace_.storages[storage.index()].bytes != tensor.storage().nbytes())
    obstacle(str("the storage of a {} tensor is resized inside the step", describe(tensor)));
  Value window = window_of(tensor, storage);
  for (ValueId id : tracked.values)
    if (trace_.values[id.index()] == window) return id;
  const ValueId id(trace_.values.size());
  trace_.values.push_back(std::move(window));
  tracked.values.push_back(id);
  return id;
}

void RecordingState::use_owned(int index) {
  OwnedMeta& owned = owned_[static_cast<size_t>(index)];
  if (owned.used) return;
  owned.used = true;
  const StorageId storage = ids_.at(owned.storage);
  owned.window.storage = storage;
  TrackedStorage& tracked = tracked_[storage.index()];
  for (ValueId id : tracked.values)
    if (trace_.values[id.index()] == owned.window) {
      trace_.externals.push_back({owned.owner, owned.key, id});
      return;
    }
  const ValueId id(trace_.values.size());
  trace_.values.push_back(owned.window);
  tracked.values.push_back(id);
  trace_.externals.push_back({owned.owner, owned.key, id});
}

StorageId RecordingState::find_or_adopt(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (const auto found = ids_.find(storage); found != ids_.end()) return found->second;
  if (const auto found = owned_by_storage_.find(storage); found != owned_by_storage_.end()) {
    const StorageId id = track(tensor, found->second);
    use_owned(found->second);
    return id;
  }
  obstacle(
      str("{} (in '{}') reads a {} tensor that is no parameter, buffer, gradient, optimizer state or batch tensor and "
          "was not made by an operator of the step",
          op_name(op), module_now(open_), describe(tensor)));
  return track(tensor, -1);
}

Arg RecordingState::tensor_argument(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  if (!tensor.defined()) return ValueId();
  if (!is_dense_cpu(tensor)) {
    obstacle(str("{} takes a {} tensor that is not dense CPU memory", op_name(op), describe(tensor)));
    return ValueId();
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && ids_.count(tensor.storage().unsafeGetStorageImpl()) == 0)
    if (const auto number = wrapped_number_of(tensor)) return *number;
  return value_on(find_or_adopt(tensor, op), tensor);
}

Arg RecordingState::argument_of(const c10::IValue& value, const c10::Argument& argument,
                                const c10::OperatorHandle& op) {
  if (value.isTensor()) return tensor_argument(value.toTensor(), op);
  if (value.isTensorList() || value.isOptionalTensorList()) {
    std::vector<ValueId> ids;
    const auto add = [&](const at::Tensor& tensor) {
      const Arg one = tensor_argument(tensor, op);
      if (!std::holds_alternative<ValueId>(one)) obstacle(str("{} takes a number inside a tensor list", op_name(op)));
      ids.push_back(std::holds_alternative<ValueId>(one) ? std::get<ValueId>(one) : ValueId());
    };
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    } else {
      for (const auto& tensor : value.toOptionalTensorVector()) add(tensor.value_or(at::Tensor()));
    }
    return ids;
  }
  if (auto constant = constant_from_ivalue(value, argument)) return std::move(*constant);
  obstacle(str("{} takes an argument '{}' of type {}, which is not captured", op_name(op), argument.name(),
               value.tagKind()));
  return std::monostate();
}

ValueId RecordingState::result_value(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (!is_dense_cpu(tensor)) {
    obstacle(str("{} returns a tensor that is not dense CPU memory", open_.op));
    return {};
  }
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto found = ids_.find(storage);
  StorageId id;
  if (found != ids_.end()) {
    id = found->second;
  } else if (const auto owned = owned_by_storage_.find(storage); owned != owned_by_storage_.end()) {
    id = track(tensor, owned->second);
    use_owned(owned->second);
  } else {
    id = track(tensor, -1);
    TrackedStorage& tracked = tracked_[id.index()];
    tracked.filled = !makes_unfilled(open_.op);
    if (tracked.allocation < 0 && tensor.storage().nbytes() != 0)
      obstacle(str("{} returns memory that it did not allocate in the step", open_.op));
  }
  return value_on(id, tensor);
}

Arg RecordingState::result_of(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isTensor()) return result_value(value.toTensor());
  if (value.isTensorList()) {
    std::vector<ValueId> ids;
    for (const at::Tensor& tensor : value.toTensorVector()) ids.push_back(result_value(tensor));
    return ids;
  }
  return constant_from_ivalue(value, argument).value_or(std::monostate());
}

// ---- calls

Phase RecordingState::phase_now() {
  if (torch::autograd::get_current_node() != nullptr) {
    backward_seen_ = true;
    return Phase::kBackward;
  }
  // After a backward pass, work that records no gradients is clipping and the update; the next work that does record
  // them is another micro-batch's forward pass.
  if (backward_seen_ && !c10::GradMode::is_enabled()) return Phase::kUpdate;
  backward_seen_ = false;
  return Phase::kForward;
}

std::string RecordingState::module_now(const Call& call) {
  if (const auto node = torch::autograd::get_current_node()) {
    const auto found = module_of_sequence_.find(static_cast<int64_t>(node->sequence_nr()));
    if (found != module_of_sequence_.end()) return found->second;
  } else if (std::string scope = ModuleScope::current(); !scope.empty()) {
    return scope;
  }
  std::string path;
  for_each_value(call.args, [&](ValueId value) {
    const int owned = tracked_[trace_.values[value.index()].storage.index()].owned;
    if (!path.empty() || owned < 0 || owned_[static_cast<size_t>(owned)].owner != Owner::kParameter) return;
    const std::string& key = owned_[static_cast<size_t>(owned)].key;
    path = key.substr(0, std::min(key.rfind('.'), key.size()));
  });
  return path;
}

// Results that depend on data leave the recording: another batch would take another path.
void RecordingState::check_effects(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.hasTag(at::Tag::data_dependent_output)) {
    obstacle(str("{} (in '{}') reads a tensor's value on the host", op_name(op), open_.module));
  } else if (op.hasTag(at::Tag::dynamic_output_shape)) {
    const auto& arguments = op.schema().arguments();
    bool indexes = false;
    bool mask = false;
    for (const c10::IValue& value : torch::jit::last(stack, arguments.size())) {
      if (!value.isOptionalTensorList()) continue;
      indexes = true;
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        mask = mask || (tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte));
      });
    }
    // Indexing with integers has a static shape, with masks it has not.
    if (!indexes || mask)
      obstacle(str("{} (in '{}') makes a tensor whose shape depends on data", op_name(op), open_.module));
  }
}

void RecordingState::begin_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto begin = std::chrono::steady_clock::now();
  const auto& arguments = op.schema().arguments();
  open_ = Call();
  open_.op = op_name(op);
  open_.phase = phase_now();
  const auto values = torch::jit::last(stack, arguments.size());
  try {
    for (size_t i = 0; i < arguments.size(); ++i) {
      open_.args.push_back(argument_of(values[i], arguments[i], op));
      if (!is_written(open_.op, arguments[i], i)) continue;
      std::vector<Arg> written = {open_.args.back()};
      for_each_value(written, [&](ValueId value) { open_.writes.push_back(value); });
    }
  } catch (const UserError& error) {
    obstacle(error.what());
    stopped_ = true;
  }
  open_.module = module_now(open_);
  if (open_.phase == Phase::kForward && c10::GradMode::is_enabled()) {
    // Autograd made the call's node just before: it holds the sequence number below the next one.
    module_of_sequence_[static_cast<int64_t>(at::sequence_number::peek()) - 1] = open_.module;
  }
  check_effects(op, stack);
  log_.begin_call(CallId(trace_.calls.size()));
  overhead_ += std::chrono::steady_clock::now() - begin;
}

void RecordingState::check_reads(const Call& call) {
  if (is_view(trace_, call)) return;
  for_each_value(call.args, [&](ValueId value) {
    const TrackedStorage& tracked = tracked_[trace_.values[value.index()].storage.index()];
    const bool written = std::find(call.writes.begin(), call.writes.end(), value) != call.writes.end();
    if (!tracked.filled && !written && trace_.storages[trace_.values[value.index()].storage.index()].bytes != 0)
      obstacle(
          str("{} (in '{}') reads memory that no operator of the step filled; what the program writes through a data "
              "pointer is not captured",
              call.op, call.module));
  });
}

void RecordingState::end_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto begin = std::chrono::steady_clock::now();
  const auto& returns = op.schema().returns();
  const auto values = torch::jit::last(stack, returns.size());
  try {
    for (size_t i = 0; i < returns.size(); ++i) open_.results.push_back(result_of(values[i], returns[i]));
  } catch (const UserError& error) {
    obstacle(error.what());
    stopped_ = true;
  }
  log_.end_call();
  if (op.hasTag(at::Tag::inplace_view)) open_.writes.clear();  // changes a tensor's window, not memory
  check_reads(open_);
  const auto used = [&](ValueId value) {
    tracked_[trace_.values[value.index()].storage.index()].last_use = log_.ticks();
  };
  for_each_value(open_.args, used);
  for_each_value(open_.results, used);
  for (ValueId value : open_.writes) tracked_[trace_.values[value.index()].storage.index()].filled = true;
  trace_.calls.push_back(std::move(open_));
  open_ = Call();
  overhead_ += std::chrono::steady_clock::now() - begin;
}

void RecordingState::abandon_call(const c10::OperatorHandle& op) {
  log_.end_call();
  obstacle(str("{} threw", op_name(op)));
  stopped_ = true;
}

// ---- the end of a step

void RecordingState::check_owned_storages(const OwnedNow& now) {
  for (const OwnedMeta& before : owned_) {
    if (before.owner == Owner::kGradient) continue;
    const auto found = now.find({before.owner, before.key});
    const bool same = found != now.end() && found->second.defined() &&
                      found->second.storage().unsafeGetStorageImpl() == before.storage;
    if (!same && (before.storage != nullptr || found == now.end()))
      obstacle(str("{} '{}' is given other memory inside the step", name_of(before.owner), before.key));
  }
  // State that an optimizer makes in its first step: the next recording finds it in place.
  if (now.size() != owned_.size()) obstacle("parameters, buffers or optimizer state come or go inside the step");
}

void RecordingState::find_gradients(const OwnedNow& now) {
  for (const OwnedMeta& before : owned_) {
    if (before.owner != Owner::kGradient) continue;
    const auto found = now.find({before.owner, before.key});
    if (found == now.end() || !found->second.defined()) {
      if (before.storage != nullptr) trace_.gradients.push_back({before.key, {}});
      continue;
    }
    const at::Tensor& gradient = found->second;
    c10::StorageImpl* storage = gradient.storage().unsafeGetStorageImpl();
    if (storage == before.storage) continue;  // accumulated in place, or untouched
    const auto made = ids_.find(storage);
    if (made == ids_.end()) {
      obstacle(str("the gradient of '{}' is replaced by a tensor that no operator of the step made", before.key));
      continue;
    }
    trace_.gradients.push_back({before.key, value_on(made->second, gradient)});
    trace_.storages[made->second.index()].escapes = true;
  }
}

void RecordingState::find_escapes() {
  for (size_t s = 0; s < tracked_.size(); ++s) {
    TrackedStorage& tracked = tracked_[s];
    if (tracked.owned >= 0 || trace_.storages[s].escapes || trace_.storages[s].bytes == 0) continue;
    if (tracked.weak.expired()) continue;
    const Value& value = trace_.values[tracked.values.front().index()];
    obstacle(str("a {}[{}] tensor that the step made is kept after it and is neither returned nor a gradient",
                 name_of(value.dtype), fmt::join(value.sizes, ", ")));
  }
}

void RecordingState::list_allocations() {
  trace_.ticks = log_.ticks() + 1;
  const auto& events = log_.events();
  std::vector<StorageId> storage_of(events.size());
  for (size_t s = 0; s < tracked_.size(); ++s)
    if (tracked_[s].allocation >= 0) storage_of[static_cast<size_t>(tracked_[s].allocation)] = StorageId(s);
  for (size_t e = 0; e < events.size(); ++e) {
    const AllocationLog::Event& event = events[e];
    if (!event.call.valid() || event.bytes == 0) continue;
    Allocation allocation{event.call, event.bytes, event.first, event.last, storage_of[e], false};
    if (allocation.storage.valid()) {
      // The memory is free again once the last call that names it has ended, however long the program held it.
      allocation.last = std::max(tracked_[allocation.storage.index()].last_use, event.first + 1);
      allocation.kept = trace_.storages[allocation.storage.index()].escapes;
    } else {
      allocation.kept = event.last < 0;
    }
    if (allocation.kept) allocation.last = trace_.ticks;
    trace_.allocations.push_back(allocation);
  }
  trace_.scratch = log_.take_scratch();
}

void RecordingState::finish(const std::vector<OwnedTensor>& owned, const std::vector<at::Tensor>& outputs) {
  const auto begin = std::chrono::steady_clock::now();
  OwnedNow now;
  for (const OwnedTensor& one : owned) now[{one.owner, one.key}] = one.tensor;
  try {
    check_owned_storages(now);
    for (const at::Tensor& output : outputs) {
      if (!output.defined()) {
        trace_.outputs.emplace_back();
        continue;
      }
      const auto found = is_dense_cpu(output) ? ids_.find(output.storage().unsafeGetStorageImpl()) : ids_.end();
      if (found == ids_.end()) {
        obstacle(str("the step returns a {} tensor that none of its operators made", describe(output)));
        trace_.outputs.emplace_back();
        continue;
      }
      trace_.outputs.push_back(value_on(found->second, output));
      if (tracked_[found->second.index()].owned < 0) trace_.storages[found->second.index()].escapes = true;
    }
    find_gradients(now);
  } catch (const UserError& error) {
    obstacle(error.what());
  }
  find_escapes();
  list_allocations();
  overhead_ += std::chrono::steady_clock::now() - begin;
}

Recording RecordingState::take(std::vector<at::Tensor> outputs) {
  Recording recording;
  recording.trace = std::move(trace_);
  recording.outputs = std::move(outputs);
  recording.obstacles = std::move(obstacles_);
  recording.peak_bytes = log_.peak_bytes();
  recording.overhead_seconds = std::chrono::duration<double>(overhead_).count();
  return recording;
}

}  // namespace stepc
