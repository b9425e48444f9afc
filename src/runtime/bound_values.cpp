#include "runtime/bound_values.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "aten/constants.h"
#include "base/check.h"

namespace stepc {

namespace {

// A window on `storage`, beginning `shift` elements later than recorded.
at::Tensor window(const c10::Storage& storage, const Value& value, int64_t shift) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                               c10::scalarTypeToTypeMeta(scalar_type_of(value.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes, value.strides, value.offset + shift);
  if (value.conj) tensor._set_conj(true);
  if (value.neg) tensor._set_neg(true);
  return tensor;
}

// Not among the program's tensors when a run begins.
bool comes_later(Owner owner) { return owner == Owner::kConstant || owner == Owner::kIncoming; }

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  return str("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}
}  // namespace

BoundValues::BoundValues(const Trace& trace, const Schedule& schedule)
    : trace_(trace), storages_(trace.storages.size()), tensors_(trace.values.size()) {
  for (size_t s = 0; s < storages_.size(); ++s) {
    if (trace.storages[s].external)
      storages_[s].kind = Kind::kOwned;
    else if (trace.storages[s].escapes)
      storages_[s].kind = Kind::kKept;
  }
  for (size_t v = 0; v < trace.values.size(); ++v) storages_[trace.values[v].storage.index()].values.emplace_back(v);
  for (const Placement& placement : schedule.placements)
    if (placement.storage.valid()) storages_[placement.storage.index()].offset = placement.offset;
  for (size_t e = 0; e < trace.externals.size(); ++e) {
    const External& external = trace.externals[e];
    StorageInfo& info = storages_[trace.values[external.value.index()].storage.index()];
    if (info.external < 0) info.external = static_cast<ssize_t>(e);
    info.transient = info.transient || external.owner == Owner::kBatch || external.owner == Owner::kGradient ||
                     external.owner == Owner::kCaptured || external.owner == Owner::kIncoming;
  }
  std::set<StorageId> written;
  for (const Call& call : trace.calls)
    for (ValueId value : call.writes) written.insert(trace.values[value.index()].storage);
  for (size_t e = 0; e < trace.externals.size(); ++e)
    if (!comes_later(trace.externals[e].owner) &&
        written.count(trace.values[trace.externals[e].value.index()].storage) != 0)
      written_externals_.push_back(e);
  for (size_t e = 0; e < trace.externals.size(); ++e)
    if (trace.externals[e].owner == Owner::kConstant) make_constant(e);
  for (size_t s = 0; s < storages_.size(); ++s) {
    if (storages_[s].external >= 0) owned_.push_back(s);
    if (storages_[s].kind == Kind::kKept || (storages_[s].kind == Kind::kOwned && storages_[s].transient))
      released_.push_back(s);
  }
  list_expected();
}

void BoundValues::list_expected() {
  for (size_t e = 0; e < trace_.externals.size(); ++e) {
    const Value& value = trace_.values[trace_.externals[e].value.index()];
    expected_.push_back({e, static_cast<size_t>(storages_[value.storage.index()].external), value.offset,
                         static_cast<uint32_t>(shapes_.size()), static_cast<uint32_t>(value.sizes.size()),
                         scalar_type_of(value.dtype), value.conj, value.neg});
    shapes_.insert(shapes_.end(), value.sizes.begin(), value.sizes.end());
    shapes_.insert(shapes_.end(), value.strides.begin(), value.strides.end());
  }
  memory_.resize(expected_.size());
}

bool BoundValues::looks_like(const at::Tensor& tensor, const Expected& expected) const {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != c10::Layout::Strided ||
      tensor.scalar_type() != expected.dtype || tensor.is_conj() != expected.conj || tensor.is_neg() != expected.neg ||
      tensor.dim() != expected.dims)
    return false;
  const int64_t* sizes = shapes_.data() + expected.shape;
  return std::equal(sizes, sizes + expected.dims, tensor.sizes().begin()) &&
         std::equal(sizes + expected.dims, sizes + 2 * expected.dims, tensor.strides().begin());
}

void BoundValues::make_constant(size_t external) {
  const auto found =
      std::find_if(trace_.constants.begin(), trace_.constants.end(),
                   [&](const stepc::Constant& constant) { return constant.key == trace_.externals[external].key; });
  INTERNAL_CHECK(found != trace_.constants.end(), "constant '{}' has no bytes", trace_.externals[external].key);
  const Value& value = trace_.values[trace_.externals[external].value.index()];
  const at::Tensor bytes = at::empty({static_cast<int64_t>(found->bytes.size())}, at::kByte);
  constants_.push_back({external, window(bytes.storage(), value, 0), &found->bytes});
}

bool BoundValues::lasts(ValueId value) const {
  const StorageInfo& info = storages_[trace_.values[value.index()].storage.index()];
  return info.kind == Kind::kPlanned || (info.kind == Kind::kOwned && !info.transient);
}

std::string BoundValues::why_not(const std::vector<at::Tensor>& externals) {
  INTERNAL_CHECK_EQ(externals.size(), trace_.externals.size());
  bool moved = false;
  for (const Expected& expected : expected_) {
    const External& external = trace_.externals[expected.external];
    if (comes_later(external.owner)) continue;
    const at::Tensor& tensor = externals[expected.external];
    if (!looks_like(tensor, expected)) {
      const Value& value = trace_.values[external.value.index()];
      return str("{} '{}' was {}[{}] and is now {}", name_of(external.owner), external.key, name_of(value.dtype),
                 fmt::join(value.sizes, ", "), describe(tensor));
    }
    const int64_t shift = externals[expected.first].storage_offset() - expected_[expected.first].offset;
    if (tensor.storage_offset() - expected.offset != shift)
      return str("{} '{}' lies elsewhere in the memory that it shares", name_of(external.owner), external.key);
    const c10::StorageImpl* memory = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    moved = moved || memory != memory_[expected.external];
    memory_[expected.external] = memory;
  }
  return moved ? why_not_memory() : std::string();
}

// The same tensors share memory as before, and no others do.
std::string BoundValues::why_not_memory() {
  std::string why;
  std::vector<std::pair<const c10::StorageImpl*, size_t>> memory;  // (storage now, storage in the trace)
  for (const Expected& expected : expected_) {
    const External& external = trace_.externals[expected.external];
    if (comes_later(external.owner)) continue;
    memory.emplace_back(memory_[expected.external], trace_.values[external.value.index()].storage.index());
    if (memory_[expected.external] != memory_[expected.first])
      why = str("{} '{}' no longer shares its memory", name_of(external.owner), external.key);
  }
  std::sort(memory.begin(), memory.end());
  for (size_t i = 1; i < memory.size(); ++i)
    if (memory[i].first == memory[i - 1].first && memory[i].second != memory[i - 1].second)
      why = "two of the step's tensors now share memory";
  if (!why.empty()) std::fill(memory_.begin(), memory_.end(), nullptr);  // the next run is looked at anew
  return why;
}

void BoundValues::bind_arena(std::byte* arena) {
  if (arena == arena_) return;
  arena_ = arena;
  ++generation_;
  for (size_t s = 0; s < storages_.size(); ++s) {
    const StorageInfo& info = storages_[s];
    if (info.kind != Kind::kPlanned) continue;
    const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(trace_.storages[s].bytes),
                               c10::DataPtr(arena + info.offset, c10::Device(c10::kCPU)), nullptr, false);
    for (ValueId value : info.values) tensors_[value.index()] = window(storage, trace_.values[value.index()], 0);
  }
}

void BoundValues::bind_owned(StorageInfo& info, const at::Tensor& tensor) {
  const auto external = static_cast<size_t>(info.external);
  const int64_t shift = tensor.storage_offset() - trace_.values[trace_.externals[external].value.index()].offset;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage == info.bound && shift == info.shift) return;
  info.bound = storage;
  info.shift = shift;
  if (!info.transient) ++generation_;
  const int64_t shift_bytes = shift * size_of(trace_.values[trace_.externals[external].value.index()].dtype);
  for (ValueId value : info.values) {
    const Value& recorded = trace_.values[value.index()];
    const int64_t moved = shift_bytes / size_of(recorded.dtype);
    const int64_t end = (extent_of(recorded) + moved) * size_of(recorded.dtype);
    INTERNAL_CHECK_LE(static_cast<uint64_t>(end), tensor.storage().nbytes(), "a window leaves '{}'",
                      trace_.externals[external].key);
    tensors_[value.index()] = window(tensor.storage(), recorded, moved);
  }
}

void BoundValues::release() {
  for (size_t storage : released_) {
    StorageInfo& info = storages_[storage];
    info.bound = nullptr;
    for (ValueId value : info.values) tensors_[value.index()].reset();
  }
}

BoundValues::Run::Run(BoundValues& values, const std::vector<at::Tensor>& externals, std::byte* arena)
    : values_(values) {
  values.bind_arena(arena);
  for (const Constant& constant : values.constants_) {  // anew for each run: the step may write to it
    const Value& value = values.trace_.values[values.trace_.externals[constant.external].value.index()];
    std::memcpy(constant.tensor.storage().mutable_data(), constant.bytes->data(), constant.bytes->size());
    values.bind_owned(values.storages_[value.storage.index()], constant.tensor);
  }
  for (size_t storage : values.owned_) {
    StorageInfo& info = values.storages_[storage];
    const auto external = static_cast<size_t>(info.external);
    if (!comes_later(values.trace_.externals[external].owner)) values.bind_owned(info, externals[external]);
  }
}
BoundValues::Run::~Run() { values_.release(); }

void BoundValues::Run::resume(const std::vector<at::Tensor>& incoming) {
  for (const External& external : values_.trace_.externals) {
    if (external.owner != Owner::kIncoming) continue;
    const Value& value = values_.trace_.values[external.value.index()];
    values_.bind_owned(values_.storages_[value.storage.index()], incoming[std::stoul(external.key)]);
  }
}

std::string BoundValues::why_not_incoming(const std::vector<at::Tensor>& incoming) const {
  for (const External& external : trace_.externals) {
    if (external.owner != Owner::kIncoming) continue;
    const Value& value = trace_.values[external.value.index()];
    const size_t index = std::stoul(external.key);
    const auto place = static_cast<size_t>(&external - trace_.externals.data());
    if (index >= incoming.size() || !looks_like(incoming[index], expected_[place]))
      return str("incoming tensor {} was {}[{}] and is now {}", index, name_of(value.dtype),
                 fmt::join(value.sizes, ", "), index < incoming.size() ? describe(incoming[index]) : "nothing");
  }
  return {};
}

void BoundValues::define(ValueId value, const at::Tensor& made) {
  const StorageId id = trace_.values[value.index()].storage;
  const StorageInfo& info = storages_[id.index()];
  USER_CHECK(made.defined(), "a replayed operator left out a result that it made while it was recorded");
  if (info.kind == Kind::kKept) {
    for (ValueId alias : info.values)
      tensors_[alias.index()] = alias == value ? made : window(made.storage(), trace_.values[alias.index()], 0);
    return;
  }
  const void* memory = made.storage().data();
  void* planned = arena_ + info.offset;
  if (memory == planned || made.storage().nbytes() == 0) return;
  INTERNAL_CHECK_EQ(made.storage().nbytes(), trace_.storages[id.index()].bytes, "%{} changed its size", value);
  std::memcpy(planned, memory, made.storage().nbytes());
}

at::Tensor BoundValues::hand_out(ValueId value) const {
  if (!value.valid()) return {};
  const bool owned = storages_[trace_.values[value.index()].storage.index()].kind == Kind::kOwned;
  return owned ? tensors_[value.index()].clone() : for_slot(value);
}

at::Tensor BoundValues::for_slot(ValueId value) const {
  if (!value.valid()) return {};
  const Value& recorded = trace_.values[value.index()];
  const StorageInfo& info = storages_[recorded.storage.index()];
  INTERNAL_CHECK(info.kind != Kind::kPlanned, "%{} is handed out of the arena", value);
  const at::Tensor& tensor = tensors_[value.index()];
  if (info.external >= 0 && trace_.externals[static_cast<size_t>(info.external)].owner == Owner::kConstant)
    return tensor.clone();
  return window(tensor.storage(), recorded, tensor.storage_offset() - recorded.offset);
}

void BoundValues::bump_versions(const std::vector<at::Tensor>& externals) const {
  for (size_t e : written_externals_)
    if (!externals[e].is_inference()) externals[e].unsafeGetTensorImpl()->bump_version();
}

}  // namespace stepc
