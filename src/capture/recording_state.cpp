#include "capture/recording_state.h"

#include <algorithm>
#include <set>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include "aten/constants.h"
#include "aten/device_facts.h"
#include "aten/device_hook.h"
#include "aten/memory_regions.h"
#include "aten/operators.h"
#include "aten/unreadable_storage.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/module_scope.h"
#include "capture/virtual/virtual_kernels.h"

namespace stepc {

namespace {
std::string describe(const at::Tensor& tensor) {
  const std::string dtype = c10::toString(tensor.scalar_type());
  if (has_own_sizes(tensor)) return dtype;
  return str("{}[{}]", dtype, fmt::join(tensor.sizes(), ", "));
}

// Of a tensor that is_planned() refuses: what it is instead.
std::string why_unplanned(const at::Tensor& tensor) {
  if (!is_planned(tensor.device())) {
    const std::string why = install_device_hook(tensor.device().type());
    return str("on {}, and {}", tensor.device().str(), why.empty() ? "the program has no tensors there" : why);
  }
  if (tensor.layout() != c10::Layout::Strided)
    return str("of layout {}, which is not dense", c10::str(tensor.layout()));
  return "that is not dense: nested, or of a class of its own";
}

// Operators whose result is memory that nobody has written yet.
bool makes_unfilled(const std::string& op) {
  return op.starts_with("aten::empty") || op.starts_with("aten::new_empty");
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

Value window_on_storage(const at::Tensor& tensor) {
  Value value;
  value.dtype = dtype_of(tensor.scalar_type());
  value.sizes = tensor.sizes().vec();
  value.strides = tensor.strides().vec();
  value.offset = tensor.storage_offset();
  value.conj = tensor.is_conj();
  value.neg = tensor.is_neg();
  return value;
}
}  // namespace

RecordingState::RecordingState(RecordedProgram& program, VirtualKernels* kernels)
    : program_(program),
      kernels_(kernels),
      random_(program.generators()),
      first_sequence_(at::sequence_number::peek()) {
  std::vector<OwnedBefore> before;
  for (const OwnedTensor& one : program.list()) {
    if (one.tensor.defined() && !one.tensor.device().is_cpu())
      install_device_hook(one.tensor.device().type());  // where it cannot be, why_unplanned() says why
    before.emplace_back(one.owner, one.key, one.tensor);
  }
  own_all(std::move(before));
}

RecordingState::RecordingState(RecordedProgram& program, std::vector<OwnedBefore> before)
    : program_(program), kernels_(nullptr), random_(program.generators()) {
  own_all(std::move(before));
}

void RecordingState::own_all(std::vector<OwnedBefore> all) {
  find_batch_regions(all);
  for (OwnedBefore& one : all) own(std::move(one));
}

void RecordingState::find_batch_regions(const std::vector<OwnedBefore>& owned) {
  std::vector<at::Tensor> batch;
  std::set<c10::StorageImpl*> others;
  for (const OwnedBefore& one : owned) {
    batch.push_back(one.batch);
    if (one.owner != Owner::kBatch && one.storage != nullptr) others.insert(one.storage);
  }
  for (const MemoryRegion& region : memory_regions(batch))
    if (!others.contains(region.storage))
      batch_regions_[region.storage].push_back(
          {region.begin, region.end, static_cast<int>(region.tensors.front()), StorageId()});
}

OwnedBefore::OwnedBefore(Owner o, std::string k, const at::Tensor& tensor) : owner(o), key(std::move(k)) {
  if (owner == Owner::kBatch) batch = tensor;
  if (!tensor.defined() || !is_planned(tensor)) return;
  window = window_on_storage(tensor);
  storage = tensor.storage().unsafeGetStorageImpl();
  weak = tensor.storage().getWeakStorageImpl();
}

void RecordingState::own(OwnedBefore one) {
  one.batch.reset();
  // Tied parameters: the first owner names the storage.
  if (one.storage != nullptr) owned_by_storage_.try_emplace(one.storage, static_cast<int>(owned_.size()));
  owned_.push_back(std::move(one));
}

void RecordingState::moved(c10::StorageImpl* from, const c10::Storage& to) {
  const auto found = ids_.find(from);
  if (found == ids_.end()) return;
  const StorageId id = found->second;
  ids_.erase(found);
  ids_[to.unsafeGetStorageImpl()] = id;
  tracked_[id.index()].weak = to.getWeakStorageImpl();
}

void RecordingState::obstacle(std::string reason) {
  if (std::find(obstacles_.begin(), obstacles_.end(), reason) == obstacles_.end())
    obstacles_.push_back(std::move(reason));
}

std::string RecordingState::place() {
  std::string where;
  const std::string module = module_now(open_);
  if (!module.empty()) where = str("in '{}'", module);
  if (const std::string line = program_.source_line(); !line.empty())
    where += str("{}at {}", where.empty() ? "" : " ", line);
  return where.empty() ? "" : str(" ({})", where);
}

std::vector<at::Tensor> RecordingState::held() {
  std::vector<at::Tensor> held = made_.held();
  std::erase_if(held, [&](const at::Tensor& tensor) {
    const auto found = ids_.find(tensor.storage().unsafeGetStorageImpl());
    return !tensor.requires_grad() && (found == ids_.end() || trace_.storages[found->second.index()].external);
  });
  return held;
}

// ---- storages and values

// Beside the host's memory a step has that of one device.
Space RecordingState::space_of(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return Space::kHost;
  const std::string device = tensor.device().str();
  if (trace_.device.empty()) {
    trace_.device = device;
    const auto facts = device_facts(tensor.device());
    if (const std::string why = facts ? trouble_with(*facts) : std::string(); !why.empty()) obstacle(why);
  }
  if (trace_.device != device)
    obstacle(str("tensors of two devices meet in the step, {} and {}: a step has one", trace_.device, device));
  return Space::kDevice;
}

StorageId RecordingState::track(const at::Tensor& tensor, int owned) {
  const c10::Storage& storage = tensor.storage();
  const StorageId id(tracked_.size());
  TrackedStorage tracked{storage.getWeakStorageImpl(), {}, storage.nbytes(), 0, owned, -1, -1, owned >= 0, {}, {}};
  if (owned < 0 && kernels_ == nullptr)
    if (const auto event = log_.find_live(storage.data())) tracked.allocation = static_cast<ssize_t>(*event);
  tracked_.push_back(std::move(tracked));
  ids_[storage.unsafeGetStorageImpl()] = id;
  trace_.storages.push_back({storage.nbytes(), owned >= 0, false, space_of(tensor)});
  return id;
}

Value RecordingState::window_of(const at::Tensor& tensor, StorageId storage) {
  Value value = window_on_storage(tensor);
  value.storage = storage;
  if (const int64_t begin = tracked_[storage.index()].begin; begin != 0) {
    const auto size = static_cast<int64_t>(tensor.element_size());
    if (begin % size != 0) obstacle(str("a batch tensor is seen as {} from odd bytes on", describe(tensor)));
    value.offset -= begin / size;
  }
  return value;
}

std::optional<StorageId> RecordingState::find_storage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (const auto regions = batch_regions_.find(storage); regions != batch_regions_.end()) {
    const auto [begin, end] = span_of(tensor);
    for (BatchRegion& region : regions->second) {
      if (begin < region.begin || region.end < end) continue;
      if (region.id.valid()) return region.id;
      region.id = track(tensor, region.owned);
      ids_.erase(storage);
      tracked_[region.id.index()].begin = region.begin;
      trace_.storages[region.id.index()].bytes = static_cast<uint64_t>(region.end - region.begin);
      use_owned(region.owned, region.id);
      return region.id;
    }
  }
  if (const auto found = ids_.find(storage); found != ids_.end()) return found->second;
  const auto found = owned_by_storage_.find(storage);
  if (found == owned_by_storage_.end() || batch_regions_.contains(storage)) return std::nullopt;
  const StorageId id = track(tensor, found->second);
  use_owned(found->second, id);
  return id;
}

ValueId RecordingState::value_on(StorageId storage, const at::Tensor& tensor) {
  TrackedStorage& tracked = tracked_[storage.index()];
  if (tracked.bytes != tensor.storage().nbytes())
    obstacle(str("the storage of a {} tensor is resized inside the step", describe(tensor)));
  Value window = window_of(tensor, storage);
  for (ValueId id : tracked.values)
    if (trace_.values[id.index()] == window) return id;
  const ValueId id(trace_.values.size());
  trace_.values.push_back(std::move(window));
  tracked.values.push_back(id);
  return id;
}

void RecordingState::use_owned(int index, StorageId storage) {
  const OwnedBefore& owned = owned_[static_cast<size_t>(index)];
  Value window = owned.window;
  window.storage = storage;
  window.offset -= tracked_[storage.index()].begin / size_of(window.dtype);
  const ValueId id(trace_.values.size());
  trace_.values.push_back(std::move(window));
  tracked_[storage.index()].values.push_back(id);
  trace_.externals.push_back({owned.owner, owned.key, id});
}

// Whether it lies in what a call of the step allocated or what the program owns: as another storage does.
bool RecordingState::is_known_memory(const c10::Storage& storage) const {
  const auto* data = static_cast<const char*>(storage.data());
  const auto lies_on = [&](const c10::weak_intrusive_ptr<c10::StorageImpl>& weak) {
    const auto other = weak.lock();
    if (!other || other.get() == storage.unsafeGetStorageImpl() || is_unreadable(*other)) return false;
    const auto* begin = static_cast<const char*>(other->data());
    return begin <= data && data < begin + other->nbytes();
  };
  return std::ranges::any_of(tracked_,
                             [&](const TrackedStorage& one) { return one.allocation >= 0 && lies_on(one.weak); }) ||
         std::ranges::any_of(owned_, [&](const OwnedBefore& one) {
           return one.owner != Owner::kBatch && one.weak && lies_on(*one.weak);
         });
}

// Memory that no operator of the step made and that nobody owns: either host data that the step made a tensor of
// (torch.tensor(3.0)), a constant then, or something that outlives the step and that the program has to explain.
StorageId RecordingState::track_unowned(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  const StorageId id = track(tensor, -1);
  TrackedStorage& tracked = tracked_[id.index()];
  tracked.filled = true;
  tracked.why_unowned =
      str("{}{} reads a {} tensor that is no parameter, buffer, gradient, optimizer state or batch tensor and was not "
          "made by an operator of the step",
          name_of(op), place(), describe(tensor));
  const size_t bytes = tensor.storage().nbytes();
  if (is_virtual(tensor)) {
    obstacle(tracked.why_unowned);
    return id;
  }
  trace_.storages[id.index()].external = true;
  if (is_known_memory(tensor.storage())) {
    obstacle(
        str("{}{} reads memory of another tensor through a storage of its own (DLPack, NumPy)", name_of(op), place()));
    tracked.allocation = -1;
  }
  const std::string key = str("{}", trace_.constants.size());
  trace_.constants.push_back({key, bytes > kMaxConstantBytes ? std::string() : bytes_of(tensor.storage())});
  trace_.externals.push_back({Owner::kConstant, key, value_on(id, tensor)});
  return id;
}

// Memory that an operator of the step made and that host code has filled through a pointer, as torch.tensor() does
// below the dispatcher: a constant, as it is now. False: too large for one.
bool RecordingState::adopt_host_data(StorageId id) {
  TrackedStorage& tracked = tracked_[id.index()];
  Storage& storage = trace_.storages[id.index()];
  const auto held = tracked.weak.lock();
  if (kernels_ != nullptr || !held || storage.bytes > kMaxConstantBytes || storage.space == Space::kDevice)
    return false;
  tracked.filled = tracked.filled_by_host = true;
  storage.external = true;
  const std::string key = str("{}", trace_.constants.size());
  trace_.constants.push_back({key, std::string(static_cast<const char*>(held->data()), storage.bytes)});
  trace_.externals.push_back({Owner::kConstant, key, tracked.values.front()});
  return true;
}

StorageId RecordingState::find_or_adopt(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  const std::optional<StorageId> found = find_storage(tensor);
  return found ? *found : track_unowned(tensor, op);
}

Arg RecordingState::tensor_argument(const at::Tensor& tensor, const c10::OperatorHandle& op, bool is_viewed) {
  if (!tensor.defined()) return ValueId();
  if (!is_planned(tensor)) {
    obstacle(str("{} takes a {} tensor {}", name_of(op), describe(tensor), why_unplanned(tensor)));
    return ValueId();
  }
  if (!is_viewed && tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
      ids_.count(tensor.storage().unsafeGetStorageImpl()) == 0)
    if (const auto number = wrapped_number_of(tensor)) return *number;
  return value_on(find_or_adopt(tensor, op), tensor);
}

Arg RecordingState::argument_of(const c10::IValue& value, const c10::Argument& argument,
                                const c10::OperatorHandle& op) {
  // A window on a number's memory has to find it there.
  if (value.isTensor()) return tensor_argument(value.toTensor(), op, argument.alias_info() != nullptr);
  if (value.isTensorList() || value.isOptionalTensorList()) {
    std::vector<ValueId> ids;
    const auto add = [&](const at::Tensor& tensor) {
      const Arg one = tensor_argument(tensor, op, /*is_viewed=*/false);
      if (!std::holds_alternative<ValueId>(one)) obstacle(str("{} takes a number inside a tensor list", name_of(op)));
      ids.push_back(std::holds_alternative<ValueId>(one) ? std::get<ValueId>(one) : ValueId());
    };
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
    } else {
      for (const auto& tensor : value.toOptionalTensorVector()) add(tensor.value_or(at::Tensor()));
    }
    return ids;
  }
  if (value.isGenerator()) {
    if (is_cpu_generator(value.toGenerator())) return random_.argument(value.toGenerator());
    obstacle(str("{} takes a random generator that is not the CPU's", name_of(op)));
    return std::monostate();
  }
  if (auto constant = constant_from_ivalue(value, argument)) return std::move(*constant);
  obstacle(str("{} takes an argument '{}' of type {}, which is not captured", name_of(op), argument.name(),
               value.tagKind()));
  return std::monostate();
}

ValueId RecordingState::result_value(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (!is_planned(tensor)) {
    obstacle(str("{} returns a tensor {}", open_.op, why_unplanned(tensor)));
    return {};
  }
  if (const std::optional<StorageId> found = find_storage(tensor)) return value_on(*found, tensor);
  const StorageId id = track(tensor, -1);
  TrackedStorage& tracked = tracked_[id.index()];
  tracked.filled = !makes_unfilled(open_.op);
  if (tracked.allocation < 0 && kernels_ == nullptr && tensor.storage().nbytes() != 0)
    obstacle(str("{} returns memory that it did not allocate in the step", open_.op));
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
  if (as_ != nullptr) {
    backward_seen_ = as_->phase != Phase::kForward;
    return as_->phase;
  }
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
  if (as_ != nullptr) return as_->module;
  if (const auto node = torch::autograd::get_current_node()) {
    const auto found = module_of_sequence_.find(static_cast<int64_t>(node->sequence_nr()));
    if (found != module_of_sequence_.end()) return found->second;
  } else if (std::string scope = ModuleScope::current(); !scope.empty()) {
    return scope;
  }
  std::string path;
  for_each_value(call.args, [&](ValueId value) {
    const int owned = tracked(value).owned;
    if (!path.empty() || owned < 0 || owned_[static_cast<size_t>(owned)].owner != Owner::kParameter) return;
    const std::string& key = owned_[static_cast<size_t>(owned)].key;
    path = key.substr(0, std::min(key.rfind('.'), key.size()));
  });
  return path;
}

// Calls that are there to raise an error, and do so by values.
bool may_raise(std::string_view op) {
  return op == "aten::_linalg_check_errors" || op == "aten::_assert_async" || op == "aten::_assert_async.msg";
}

// Whether the call says where in its storage the window that it makes begins.
bool is_window_by_place(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args) {
  const auto& schema = op.schema().arguments();
  for (size_t a = 0; a < schema.size(); ++a)
    if (schema[a].name() == "storage_offset" && args[0].isTensor() && args[0].toTensor().defined() &&
        is_planned(args[0].toTensor()))
      return !args[a].isNone();
  return false;
}

// Whether the call gives the host a number.
bool reads_host(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return op.hasTag(at::Tag::data_dependent_output) && returns.size() == 1 &&
         returns.front().type()->kind() != c10::TypeKind::TensorType;
}

// Whether the shape of the call's first result depends on data.
bool shape_depends_on_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  bool indexes = false;
  bool mask = false;
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (!value.isOptionalTensorList()) continue;
    indexes = true;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      mask = mask || (tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte));
    });
  }
  // Indexing with integers has a static shape, with masks it has not.
  return !indexes || mask;
}

void RecordingState::run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (kernels_ == nullptr) {
    op.redispatchBoxed(below, stack);
    return;
  }
  try {
    kernels_->run(op, below, stack);
  } catch (const UserError& error) {
    refusal_ = str("{}{}", error.what(), place());
    user_error("{}", refusal_);
  }
}

void RecordingState::call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (stopped_) {
    run(op, below, stack);
    return;
  }
  begin_call(op, *stack);
  try {
    run(op, below, stack);
  } catch (...) {
    abandon_call(op);
    throw;
  }
  end_call(op, *stack);
}

void RecordingState::begin_call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto begin = std::chrono::steady_clock::now();
  const auto& arguments = op.schema().arguments();
  const CallId id(trace_.calls.size());
  random_.before_call(id);
  open_ = Call();
  open_.op = name_of(op);
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
  if (open_.phase == Phase::kForward && c10::GradMode::is_enabled() && as_ == nullptr) {
    // Autograd made the call's node just before: it holds the sequence number below the next one. A call that has none
    // finds that of the node before it.
    module_of_sequence_.try_emplace(static_cast<int64_t>(at::sequence_number::peek()) - 1, open_.module);
  }
  open_shape_depends_ = shape_depends_on_data(op, stack);
  if (is_window_by_place(op, values) && batch_regions_.contains(values[0].toTensor().storage().unsafeGetStorageImpl()))
    obstacle(str("{}{} takes a window of a batch tensor by its place in memory", open_.op, place()));
  if (open_.op == "aten::_ctc_loss") effect(str("{}{} takes lengths that are read on the host", open_.op, place()));
  if (const auto node = torch::autograd::get_current_node(); node && node->sequence_nr() < first_sequence_)
    effect(str("{}{} is part of a backward pass through a graph that was made before the step", open_.op, place()));
  const std::string why = why_hosts(op);
  open_is_hosts_ = !why.empty();
  if (open_is_hosts_) effect(str("{}{} {}", open_.op, place(), why));
  in_unknown_ = !is_known_operator(open_.op);
  if (in_unknown_) before_unknown_ = read_generator(at::detail::getDefaultCPUGenerator());
  log_.begin_call(id);
  overhead_ += std::chrono::steady_clock::now() - begin;
}

// Why only the host's own run of the step can make the call; empty: a replay can.
std::string RecordingState::why_hosts(const c10::OperatorHandle& op) {
  if (open_.op == "aten::_pack_padded_sequence")  // and recurrent layers read what it makes
    return "reads lengths of sequences on the host, past the dispatcher";
  if (open_.op == "aten::linalg_matrix_exp") return "chooses by norms that it reads on the host what it allocates";
  if (open_.op == "stepc::shown") return "gives values to the host";
  if (may_raise(open_.op)) return "ends the step, or not, by what it finds in the data";
  if (!is_known_operator(open_.op) && find_rule(program_.op_rules(), open_.op) == nullptr)
    return "is no operator of PyTorch's: nothing is known of it (stepc.op_rule says what it does)";
  if (op.hasTag(at::Tag::data_dependent_output) && !reads_host(op))
    return "makes tensors that depend on a value read on the host";
  return {};
}

void RecordingState::check_reads(const Call& call) {
  if (is_view(trace_, call)) return;
  for_each_value(call.args, [&](ValueId value) {
    const bool written = std::find(call.writes.begin(), call.writes.end(), value) != call.writes.end();
    const StorageId storage = trace_.values[value.index()].storage;
    if (tracked(value).filled || written || trace_.storages[storage.index()].bytes == 0) return;
    if (adopt_host_data(storage))
      effect(str("{}{} reads what host code has put into memory", call.op, place()));
    else
      obstacle(
          str("{}{} reads memory that no operator of the step filled; what the program writes through a data "
              "pointer is not captured",
              call.op, place()));
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
  if (notes_made_) made_.note(values);
  if (op.hasTag(at::Tag::inplace_view)) open_.writes.clear();  // changes a tensor's window, not memory
  check_reads(open_);
  const auto used = [&](ValueId value) { tracked(value).last_use = log_.ticks(); };
  for_each_value(open_.args, used);
  for_each_value(open_.results, used);
  for (ValueId value : open_.writes) tracked(value).filled = true;
  const CallId id(trace_.calls.size());
  random_.after_call(id);
  if (in_unknown_ && !is_in_state(at::detail::getDefaultCPUGenerator(), *before_unknown_))
    obstacle(str("{}{} draws random numbers, and nothing else is known of it", open_.op, place()));
  in_unknown_ = false;
  if (open_is_hosts_ && !open_shape_depends_) trace_.reads.push_back({id, false, false, program_.source_line()});
  if (open_shape_depends_) trace_.reads.push_back({id, true, false, program_.source_line()});
  if (reads_host(op) && !open_is_hosts_) {
    trace_.reads.push_back({id, false, false, program_.source_line()});
    if (std::holds_alternative<std::complex<double>>(open_.results.front()))
      obstacle(str("{}{} reads a complex number on the host", open_.op, place()));
  }
  trace_.calls.push_back(std::move(open_));
  open_ = Call();
  overhead_ += std::chrono::steady_clock::now() - begin;
}

void RecordingState::abandon_call(const c10::OperatorHandle& op) {
  log_.end_call();
  in_unknown_ = false;
  obstacle(str("{} threw", name_of(op)));
  stopped_ = raised_ = true;
}

}  // namespace stepc
