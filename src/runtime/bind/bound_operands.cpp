#include "runtime/bind/bound_operands.h"

#include <algorithm>
#include <cstring>

#include <ATen/Functions.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "aten/constants.h"
#include "aten/virtual_memory.h"
#include "base/check.h"

namespace stepc {

namespace {

// A window on `storage`, beginning `shift_bytes` later than recorded.
at::Tensor window(const c10::Storage& storage, const Operand& operand, int64_t shift_bytes) {
  const int64_t offset = operand.offset + shift_bytes / size_of(operand.dtype);
  at::Tensor tensor = tensor_on(storage, operand.sizes, operand.strides, offset, scalar_type_of(operand.dtype));
  if (operand.conj) tensor._set_conj(true);
  if (operand.neg) tensor._set_neg(true);
  return tensor;
}

constexpr int64_t kAlignment = 16;  // of what generated kernels of a device read and write

// Whether the input is not yet there when a run begins.
bool comes_later(InputKind kind) { return !is_of_program(kind) || kind == InputKind::kIncoming; }
bool is_transient(InputKind kind) {
  return kind == InputKind::kBatch || kind == InputKind::kGradient || kind == InputKind::kCaptured ||
         kind == InputKind::kIncoming || kind == InputKind::kHost;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  return str("{}[{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}
}  // namespace

bool takes_memory(const Schedule& schedule, const ScheduleOutput& output) {
  if (output.kind != ScheduleOutput::Kind::kReturn || !output.operand.valid()) return false;
  const Operand& operand = schedule.operands[output.operand.index()];
  const Buffer& buffer = schedule.buffers[operand.buffer.index()];
  const auto lies_there = [&](const ScheduleOutput& one) {
    return one.operand.valid() && schedule.operands[one.operand.index()].buffer == operand.buffer;
  };
  return buffer.kind == Buffer::Kind::kOwn && operand.offset == 0 &&
         operand.strides == contiguous_strides(operand.sizes) &&
         buffer.bytes == static_cast<uint64_t>(bytes_of(operand)) &&
         std::ranges::count_if(schedule.outputs, lies_there) == 1;
}

BoundOperands::BoundOperands(const Schedule& schedule, InstructionMemory& memory)
    : schedule_(schedule),
      memory_(memory),
      buffers_(schedule.buffers.size()),
      tensors_(schedule.operands.size()),
      data_(schedule.operands.size(), nullptr),
      host_tensors_(schedule.inputs.size()) {
  if (!schedule.device.empty()) device_ = c10::Device(schedule.device);
  for (size_t o = 0; o < schedule.operands.size(); ++o)
    buffers_[schedule.operands[o].buffer.index()].operands.emplace_back(o);
  for (size_t i = 0; i < schedule.inputs.size(); ++i) {
    const ScheduleInput& input = schedule.inputs[i];
    const Operand& operand = schedule.operands[input.operand.index()];
    BufferState& buffer = buffers_[operand.buffer.index()];
    buffer.transient = buffer.transient || is_transient(input.kind);
  }
  add_host_tensors();
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    const Buffer& buffer = schedule.buffers[b];
    BufferState& state = buffers_[b];
    if (buffer.kind == Buffer::Kind::kOwn) state.transient = true;
    if (state.transient) released_.emplace_back(b);
    if (buffer.kind == Buffer::Kind::kInput && !comes_later(schedule.inputs[buffer.input].kind))
      of_program_.emplace_back(b);
    if (buffer.kind == Buffer::Kind::kConstant) add_constant(BufferId(b));
  }
  list_expected();
}

c10::Device BoundOperands::device_of(const Buffer& buffer) const {
  return buffer.space == Space::kDevice ? *device_ : c10::Device(c10::kCPU);
}

// On a device the host's tensors are contiguous, so one copy brings them all.
void BoundOperands::add_host_tensors() {
  constexpr int64_t kApart = 16;
  int64_t bytes = 0;
  std::vector<std::pair<size_t, int64_t>> there;  // input, place
  for (size_t i = 0; i < schedule_.inputs.size(); ++i) {
    const ScheduleInput& input = schedule_.inputs[i];
    const Operand& operand = schedule_.operands[input.operand.index()];
    if (is_of_program(input.kind)) continue;
    if (schedule_.buffers[operand.buffer.index()].space == Space::kHost) {
      host_tensors_[i] = at::zeros(operand.sizes, scalar_type_of(operand.dtype));
      bind_input(operand.buffer, host_tensors_[i]);
      continue;
    }
    there.emplace_back(i, bytes);
    bytes += (bytes_of(operand) + kApart - 1) / kApart * kApart;
  }
  if (there.empty()) return;
  numbers_ = at::zeros({bytes}, at::kByte);
  numbers_there_ = at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(*device_));
  for (const auto& [i, place] : there) {
    const Operand& operand = schedule_.operands[schedule_.inputs[i].operand.index()];
    host_tensors_[i] = window(numbers_.storage(), operand, place);
    bind(operand.buffer, numbers_there_.storage(), place);
  }
}

void BoundOperands::add_constant(BufferId id) {
  const Buffer& buffer = schedule_.buffers[id.index()];
  Constant constant{id, at::empty({static_cast<int64_t>(buffer.content.size())}, at::kByte), {}};
  if (buffer.space == Space::kDevice) {
    constant.original = constant.bytes;
    std::memcpy(constant.original.mutable_data_ptr(), buffer.content.data(), buffer.content.size());
    constant.bytes = at::empty_like(constant.original, device_of(buffer));
  }
  bind(id, constant.bytes.storage(), 0);
  constants_.push_back(std::move(constant));
}

void BoundOperands::list_expected() {
  for (uint32_t i = 0; i < schedule_.inputs.size(); ++i) {
    const ScheduleInput& input = schedule_.inputs[i];
    if (!is_of_program(input.kind)) continue;
    const Operand& operand = schedule_.operands[input.operand.index()];
    const bool is_on_device = schedule_.buffers[operand.buffer.index()].space == Space::kDevice;
    const bool is_aligned = operand.offset * size_of(operand.dtype) % kAlignment == 0;
    expected_.push_back({i, schedule_.buffers[operand.buffer.index()].input, operand.offset,
                         static_cast<uint32_t>(shapes_.size()), static_cast<uint32_t>(operand.sizes.size()),
                         scalar_type_of(operand.dtype), operand.conj, operand.neg, is_on_device,
                         is_on_device && is_aligned && schedule_.features.sm > 0});
    shapes_.insert(shapes_.end(), operand.sizes.begin(), operand.sizes.end());
    shapes_.insert(shapes_.end(), operand.strides.begin(), operand.strides.end());
  }
  storages_.resize(expected_.size());
}

bool BoundOperands::looks_like(const at::Tensor& tensor, const Expected& expected) const {
  const auto lies_there = [&] {
    return expected.is_on_device ? tensor.device() == *device_ : tensor.device().is_cpu();
  };
  if (!tensor.defined() || !lies_there() || tensor.layout() != c10::Layout::Strided ||
      tensor.scalar_type() != expected.dtype || tensor.is_conj() != expected.conj || tensor.is_neg() != expected.neg ||
      tensor.dim() != expected.dims)
    return false;
  const int64_t* sizes = shapes_.data() + expected.shape;
  return std::equal(sizes, sizes + expected.dims, tensor.sizes().begin()) &&
         std::equal(sizes + expected.dims, sizes + 2 * static_cast<size_t>(expected.dims), tensor.strides().begin());
}

std::string BoundOperands::mismatch(const ScheduleInput& input, const at::Tensor& tensor) const {
  const Operand& operand = schedule_.operands[input.operand.index()];
  const bool is_strided = tensor.defined() && tensor.layout() == c10::Layout::Strided;
  if (is_strided && tensor.sizes() == c10::IntArrayRef(operand.sizes) &&
      tensor.scalar_type() == scalar_type_of(operand.dtype) && tensor.strides() != c10::IntArrayRef(operand.strides))
    return str("{} '{}' had strides [{}] and has strides [{}]", name_of(input.kind), input.key,
               fmt::join(operand.strides, ", "), fmt::join(tensor.strides(), ", "));
  const c10::Device was = device_of(schedule_.buffers[operand.buffer.index()]);
  if (tensor.defined() && tensor.device() != was)
    return str("{} '{}' was on {} and is now on {}", name_of(input.kind), input.key, was.str(), tensor.device().str());
  return str("{} '{}' was {}[{}] and is now {}", name_of(input.kind), input.key, name_of(operand.dtype),
             fmt::join(operand.sizes, ", "), describe(tensor));
}

std::string BoundOperands::why_not(const std::vector<at::Tensor>& inputs) {
  INTERNAL_CHECK_EQ(inputs.size(), schedule_.inputs.size());
  bool moved = false;
  for (size_t e = 0; e < expected_.size(); ++e) {
    const Expected& expected = expected_[e];
    const ScheduleInput& input = schedule_.inputs[expected.input];
    if (comes_later(input.kind)) continue;
    const at::Tensor& tensor = inputs[expected.input];
    if (!looks_like(tensor, expected)) return mismatch(input, tensor);
    if (expected.is_aligned && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment != 0)
      return str("{} '{}' begins at no multiple of {} bytes", name_of(input.kind), input.key, kAlignment);
    const Operand& first = schedule_.operands[schedule_.inputs[expected.first].operand.index()];
    const int64_t shift = inputs[expected.first].storage_offset() - first.offset;
    if (tensor.storage_offset() - expected.offset != shift)
      return str("{} '{}' lies elsewhere in the memory that it shares", name_of(input.kind), input.key);
    const c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    moved = moved || storage != storages_[e];
    storages_[e] = storage;
  }
  return moved ? why_not_memory() : std::string();
}

// Checks that the same tensors share memory as in the recording, and no others. Windows of the batch may share a
// storage; the step's signature says which of them overlap. Data that the host has made or fetched inside the step is
// compared in capture/tracer.h.
std::string BoundOperands::why_not_memory() {
  std::string why;
  std::vector<std::tuple<const c10::StorageImpl*, BufferId, bool>> memory;  // and whether it is the batch's
  std::vector<const c10::StorageImpl*> of_first(schedule_.inputs.size(), nullptr);
  for (size_t e = 0; e < expected_.size(); ++e) of_first[expected_[e].input] = storages_[e];
  for (size_t e = 0; e < expected_.size(); ++e) {
    const ScheduleInput& input = schedule_.inputs[expected_[e].input];
    if (comes_later(input.kind)) continue;
    if (input.kind == InputKind::kHost) continue;
    memory.emplace_back(storages_[e], schedule_.operands[input.operand.index()].buffer,
                        input.kind == InputKind::kBatch);
    if (storages_[e] != of_first[expected_[e].first])
      why = str("{} '{}' no longer shares its memory", name_of(input.kind), input.key);
  }
  std::ranges::sort(memory);
  for (size_t i = 1; i < memory.size(); ++i) {
    const auto& [storage, buffer, is_batch] = memory[i];
    const auto& [other_storage, other_buffer, is_other_batch] = memory[i - 1];
    if (storage == other_storage && buffer != other_buffer && !(is_batch && is_other_batch))
      why = "two of the step's tensors now share memory";
  }
  if (!why.empty()) std::ranges::fill(storages_, nullptr);  // the next run is looked at anew
  return why;
}

std::string BoundOperands::why_not_incoming(const std::vector<at::Tensor>& incoming) const {
  for (const Expected& expected : expected_) {
    const ScheduleInput& input = schedule_.inputs[expected.input];
    if (input.kind != InputKind::kIncoming) continue;
    const size_t index = std::stoul(input.key);
    const at::Tensor none;
    const at::Tensor& tensor = index < incoming.size() ? incoming[index] : none;
    if (!looks_like(tensor, expected)) return mismatch(input, tensor);
  }
  return {};
}

void BoundOperands::bind(BufferId buffer, const c10::Storage& storage, int64_t shift_bytes) {
  for (OperandId id : buffers_[buffer.index()].operands) {
    const Operand& operand = schedule_.operands[id.index()];
    const int64_t end = extent_of(operand) * size_of(operand.dtype) + shift_bytes;
    INTERNAL_CHECK(operand.offset * size_of(operand.dtype) + shift_bytes >= 0 &&
                       static_cast<uint64_t>(std::max<int64_t>(end, 0)) <= storage.nbytes(),
                   "a window leaves its memory");
    at::Tensor& tensor = tensors_[id.index()];
    tensor = window(storage, operand, shift_bytes);
    data_[id.index()] = storage.nbytes() == 0 ? nullptr : tensor.mutable_data_ptr();
  }
}

void BoundOperands::bind_arena(const ArenaPlace& arena) {
  if (arena == arena_) return;
  arena_ = arena;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = schedule_.buffers[b];
    if (buffer.kind != Buffer::Kind::kArena) continue;
    const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(buffer.bytes),
                               c10::DataPtr(arena.at(buffer.offset), device_of(buffer)), nullptr, false);
    bind(BufferId(b), storage, 0);
  }
}

void BoundOperands::bind_input(BufferId buffer, const at::Tensor& tensor) {
  BufferState& state = buffers_[buffer.index()];
  const ScheduleInput& input = schedule_.inputs[schedule_.buffers[buffer.index()].input];
  const Operand& operand = schedule_.operands[input.operand.index()];
  const int64_t shift = (tensor.storage_offset() - operand.offset) * size_of(operand.dtype);
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage == state.bound && shift == state.shift) return;
  state.bound = storage;
  state.shift = shift;
  bind(buffer, tensor.storage(), shift);
}

void BoundOperands::release() {
  for (BufferId buffer : released_) {
    BufferState& state = buffers_[buffer.index()];
    state.bound = nullptr;
    state.is_given = false;
    for (OperandId operand : state.operands) {
      tensors_[operand.index()].reset();
      data_[operand.index()] = nullptr;
    }
  }
}

BoundOperands::Run::Run(BoundOperands& operands, const std::vector<at::Tensor>& inputs, const ArenaPlace& arena)
    : operands_(operands) {
  operands.bind_arena(arena);
  for (const Constant& constant : operands.constants_) {  // anew for each run: the step may write to it
    const std::string& content = operands.schedule_.buffers[constant.buffer.index()].content;
    if (constant.original.defined())
      constant.bytes.copy_(constant.original, /*non_blocking=*/true);
    else
      std::memcpy(constant.bytes.mutable_data_ptr(), content.data(), content.size());
  }
  for (BufferId buffer : operands.of_program_)
    operands.bind_input(buffer, inputs[operands.schedule_.buffers[buffer.index()].input]);
}
BoundOperands::Run::~Run() { operands_.release(); }

void BoundOperands::Run::resume(const std::vector<at::Tensor>& incoming) {
  for (const ScheduleInput& input : operands_.schedule_.inputs)
    if (input.kind == InputKind::kIncoming)
      operands_.bind_input(operands_.schedule_.operands[input.operand.index()].buffer, incoming[std::stoul(input.key)]);
}

void BoundOperands::Run::give(const ScheduleOutput& output, const at::Tensor& memory) {
  if (!takes_memory(operands_.schedule_, output)) return;
  const Operand& operand = operands_.schedule_.operands[output.operand.index()];
  const bool fits = memory.sizes() == c10::IntArrayRef(operand.sizes) && memory.is_contiguous() &&
                    memory.scalar_type() == scalar_type_of(operand.dtype) &&
                    memory.device() == operands_.device_of(operands_.schedule_.buffers[operand.buffer.index()]);
  INTERNAL_CHECK(fits, "a result of another look is to be made in {}", describe(memory));
  operands_.bind(operand.buffer, memory.storage(), static_cast<int64_t>(memory.storage_offset() * memory.itemsize()));
  operands_.buffers_[operand.buffer.index()].is_given = true;
}

void BoundOperands::make_own(OperandId id) {
  if (tensors_[id.index()].defined()) return;
  const BufferId buffer = schedule_.operands[id.index()].buffer;
  const Buffer& own = schedule_.buffers[buffer.index()];
  if (own.bytes > 0) memory_.keep_next();
  const auto options = at::TensorOptions().dtype(at::kByte).device(device_of(own));
  bind(buffer, at::empty({static_cast<int64_t>(own.bytes)}, options).storage(), 0);
}

bool BoundOperands::is_in_arena(const at::Tensor& tensor) const {
  const auto* memory = static_cast<const std::byte*>(tensor.storage().data());
  const bool is_device = tensor.device() != c10::Device(c10::kCPU);
  const std::byte* const begin = is_device ? arena_.device : arena_.host;
  const uint64_t host_bytes = std::min(schedule_.arena_bytes, arena_.device_begin);
  return memory >= begin && memory < begin + (is_device ? schedule_.arena_bytes - host_bytes : host_bytes);
}

void BoundOperands::define(OperandId id, const at::Tensor& made, const std::vector<OperandId>& reads) {
  USER_CHECK(made.defined(), "a replayed operator left out a result that it made while it was recorded");
  const Operand& operand = schedule_.operands[id.index()];
  const at::Tensor& place = tensors_[id.index()];
  if (place.defined() && place.const_data_ptr() == made.const_data_ptr() && place.strides() == made.strides()) return;
  const Buffer& buffer = schedule_.buffers[operand.buffer.index()];
  if (buffer.kind == Buffer::Kind::kOwn && !place.defined()) {
    const bool is_given = std::ranges::any_of(reads, [&](OperandId read) {
      return read.valid() && tensors_[read.index()].defined() && tensors_[read.index()].is_alias_of(made);
    });
    if (!is_given && !is_in_arena(made) && made.storage().nbytes() == buffer.bytes &&
        made.storage_offset() == operand.offset && made.strides() == c10::IntArrayRef(operand.strides))
      return bind(operand.buffer, made.storage(), 0);
  }
  make_own(id);
  if (made.numel() > 0) place.copy_(made);
}

at::Tensor BoundOperands::hand_out(OperandId id) const {
  if (!id.valid()) return {};
  const at::Tensor& tensor = tensors_[id.index()];
  const Operand& operand = schedule_.operands[id.index()];
  const int64_t shift = (tensor.storage_offset() - operand.offset) * size_of(operand.dtype);
  return window(tensor.storage(), operand, shift);
}

void BoundOperands::bump_versions(const std::vector<at::Tensor>& inputs) const {
  for (size_t i = 0; i < schedule_.inputs.size(); ++i)
    if (schedule_.inputs[i].written && !inputs[i].is_inference()) inputs[i].unsafeGetTensorImpl()->bump_version();
}

}  // namespace stepc
