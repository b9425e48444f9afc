#include "capture/virtual/virtual_kernels.h"

#include <algorithm>
#include <array>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

#include "aten/constants.h"
#include "aten/draws_leave_no_trace.h"
#include "aten/generator_snapshot.h"
#include "aten/virtual_device.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "capture/virtual/call_device.h"
#include "capture/virtual/factory_geometry.h"
#include "capture/virtual/known_masks.h"
#include "capture/virtual/shape_kernels.h"
#include "capture/virtual/stand_ins.h"

namespace stepc {

namespace {

using torch::jit::Stack;

// A kernel without a shape function is run on stand-ins instead, while that is cheap.
constexpr size_t kLargestRehearsal = size_t{64} << 20;
// So is one that takes random numbers, while it is cheaper still: the generator then goes on as it really would, and
// what is drawn after it for real (stochastic depth, time steps) has the values of a real run.
constexpr size_t kLargestDrawRehearsal = size_t{256} << 10;

// Calls f for every defined tensor in `value` until it returns false; returns whether it never did.
template <class F>
bool each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return !tensor.defined() || f(tensor);
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList())
      if (tensor.defined() && !f(tensor)) return false;
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      if (tensor.has_value() && tensor->defined() && !f(*tensor)) return false;
  }
  return true;
}

// Whether what a call makes of these arguments is small enough to be computed: their sizes broadcast, times what a
// `repeats` says.
bool is_moderate(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> values) {
  constexpr size_t kMaxDims = 64;
  std::array<int64_t, kMaxDims> sizes{};
  size_t dims = 0;
  size_t element = 1;
  bool counts = true;
  double elements = 1;
  for (size_t i = 0; i < values.size(); ++i) {
    each_tensor(values[i], [&](const at::Tensor& tensor) {
      if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        element = std::max(element, static_cast<size_t>(tensor.element_size()));
        counts = counts && c10::isIntegralType(tensor.scalar_type(), true);
      }
      dims = std::max(dims, static_cast<size_t>(tensor.dim()));
      for (size_t d = 0; d < static_cast<size_t>(tensor.dim()); ++d)
        sizes[d] = std::max(sizes[d], tensor.size(tensor.dim() - 1 - static_cast<int64_t>(d)));
      return true;
    });
    if (op.schema().arguments()[i].name() == "repeats" && values[i].isIntList())
      for (int64_t count : values[i].toIntVector()) elements *= static_cast<double>(count);
  }
  for (size_t d = 0; d < dims; ++d) elements *= static_cast<double>(sizes[d]);
  return elements * static_cast<double>(element) <=
         static_cast<double>(counts ? kLargestKnownInteger : kLargestKnownFloat);
}

// set_(): `self` becomes a window on another storage. The kernel compares the storages' memory, which virtual ones
// lack; false where neither is one.
bool set_window(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  if (arguments.size() < 2) return false;
  const bool from_tensor = arguments[1].isTensor();
  const c10::Storage storage = from_tensor ? arguments[1].toTensor().storage() : arguments[1].toStorage();
  if (!is_virtual(self) && !is_virtual(*storage.unsafeGetStorageImpl())) return false;
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  if (arguments.size() == 5) {
    impl->set_sizes_and_strides(arguments[3].toIntVector(), arguments[4].toIntVector(), arguments[2].toInt());
  } else if (from_tensor) {
    const at::Tensor& source = arguments[1].toTensor();
    impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  } else {
    impl->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes()) / self.element_size()});
  }
  return true;
}

at::Generator generator_of(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& value : arguments)
    if (value.isGenerator()) return value.toGenerator();
  return default_generator_of(device_among(arguments).value_or(at::kCPU));
}

// Whether a kernel may be given the tensor itself.
bool is_readable(const at::Tensor& tensor) { return !is_virtual(tensor) && !is_on_virtual_device(tensor.device()); }

// resize_() of a tensor on the device that has no memory there.
void resize_on_device(c10::ArrayRef<c10::IValue> arguments) {
  c10::TensorImpl* const impl = arguments[0].toTensor().unsafeGetTensorImpl();
  impl->set_sizes_contiguous(arguments[1].toIntVector());
  if (!arguments[2].isNone()) impl->empty_tensor_restride(arguments[2].toMemoryFormat());
}

// Calls `kernel` on stand-ins for `arguments`; its results are the program's.
template <class Kernel>
Stack call_on_stand_ins(StandIns::Kind kind, const CallDevice& device, const std::vector<c10::IValue>& arguments,
                        Kernel&& kernel) {
  StandIns stand_ins(kind, device.made);
  Stack stack;
  stack.reserve(arguments.size());
  for (const c10::IValue& argument : arguments) stack.push_back(stand_ins.replace(argument));
  kernel(&stack);
  for (c10::IValue& result : stack) result = stand_ins.give_back(result);
  return stack;
}

// A call on known values of the device that is not there.
void run_on_host(const OperatorTraits& t, const c10::OperatorHandle& op, const CallDevice& device, Stack* stack) {
  const DrawsLeaveNoTrace aside;
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  Stack made = call_on_stand_ins(StandIns::Kind::kHost, device, arguments, [&](Stack* on_host) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), on_host);
  });
  for (size_t i = 0; i < t.returned.size(); ++i)
    stack->push_back(t.returned[i] < 0 ? std::move(made[i]) : arguments[static_cast<size_t>(t.returned[i])]);
}

// What stands for numbers that are read: of a size that a loss may have, and nobody's constant.
constexpr double kNoOtherNumber = 0.8414709848078965, kStep = 0x1p-32;
// What a kernel of CUDA takes off its generator, at least.
constexpr uint64_t kPhiloxOffset = 4;
// A loop that ends by a number has no end by a stand-in.
constexpr int64_t kMostStandIns = 100'000;

}  // namespace

const OperatorTraits& VirtualKernels::traits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema* key = &op.schema();
  if (const auto found = traits_.find(key); found != traits_.end()) return found->second;
  return traits_.emplace(key, traits_of(op)).first->second;
}

bool VirtualKernels::all_known(c10::ArrayRef<c10::IValue> arguments) {
  return std::all_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    return each_tensor(value, [&](const at::Tensor& tensor) { return values_.is_known(tensor); });
  });
}

void VirtualKernels::run(const c10::OperatorHandle& op, c10::DispatchKeySet below, Stack* stack) {
  const OperatorTraits& t = traits(op);
  const size_t count = op.schema().arguments().size();
  const CallDevice device = device_of_call(t.name, *stack, count);
  if (t.metadata_only) {
    if (t.name == "aten::resize_") {
      grow(*stack, count);
      if (device.takes_device && !is_readable(torch::jit::peek(*stack, 0, count).toTensor())) {
        resize_on_device(torch::jit::last(*stack, count));
        torch::jit::drop(*stack, count - 1);
        return;
      }
    }
    if (t.name.starts_with("aten::set_.source") && set_window(torch::jit::last(*stack, count))) {
      torch::jit::drop(*stack, count - 1);  // returns its first argument
      return;
    }
    op.redispatchBoxed(below, stack);
    return;
  }
  if (t.fills) {
    fill(t, op, below, stack);
    return;
  }
  const auto arguments = torch::jit::last(*stack, count);
  const bool is_read = t.name == "aten::_local_scalar_dense";
  if (is_read) ++reads_so_far_;
  const bool has_kernel =
      !device.takes_device || !has_virtual_device() || op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  if (has_kernel && all_known(arguments) && (t.reads_values || is_moderate(op, arguments))) {
    execute(t, op, below, stack);
    return;
  }
  if (const auto number = is_read ? number_for(arguments[0].toTensor().scalar_type()) : std::nullopt) {
    torch::jit::drop(*stack, 1);
    stack->push_back(constant_to_ivalue(*number, op.schema().returns().at(0)));
    return;
  }
  if (t.name == "aten::masked_select" && select_by_known_mask(values_, stack)) return;
  USER_CHECK(
      !t.reads_values || !t.writes.empty() || (t.name == "aten::index.Tensor" && replace_known_masks(values_, stack)),
      "{} reads a value that was never computed: virtual capture runs no kernels, it knows the values of the "
      "batch given for real and of what follows from it alone",
      t.name);
  skip(t, op, below, stack);
}

// For the read at hand; nothing: it is refused.
std::optional<Arg> VirtualKernels::number_for(at::ScalarType type) {
  const bool is_real = at::isFloatingType(type);
  const size_t place = reads_so_far_ - 1;
  if (numbers_ && place < numbers_->size() && !std::holds_alternative<std::monostate>((*numbers_)[place]))
    return (*numbers_)[place];
  if (reads_ == Reads::kThrow || !(is_real || numbers_) || at::isComplexType(type)) return std::nullopt;
  USER_CHECK(++stand_ins_ < kMostStandIns,
             "the step reads {} numbers on the host, and what it does with them cannot be captured", stand_ins_);
  if (is_real) return Arg(kNoOtherNumber * (1 + static_cast<double>(stand_ins_) * kStep));
  return type == at::kBool ? Arg(true) : Arg(int64_t{1});
}

void VirtualKernels::grow(const Stack& stack, size_t arguments) {
  const auto values = torch::jit::last(stack, arguments);
  const at::Tensor& self = values[0].toTensor();
  if (is_readable(self)) return;
  const size_t bytes = at::detail::computeStorageNbytesContiguous(values[1].toIntVector(), self.element_size(),
                                                                  static_cast<size_t>(self.storage_offset()));
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  if (bytes <= storage->nbytes()) return;
  storage->set_nbytes(bytes);
  if (!is_virtual(self)) dematerialise(self, "what a tensor on cuda had before it was resized is not kept");
}

// The call runs for real, its results are known.
void VirtualKernels::execute(const OperatorTraits& t, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                             Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  for (size_t i : t.writes)
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      values_.keep(tensor);
      return true;
    });
  const CallDevice device = device_of_call(t.name, *stack, arguments.size());
  const bool is_absent = device.takes_device && has_virtual_device();
  if (t.draws) draw(arguments, /*token=*/is_absent);
  if (is_absent)
    run_on_host(t, op, device, stack);
  else
    op.redispatchBoxed(below, stack);
  const auto results = torch::jit::last(*stack, t.returned.size());
  for (size_t i = 0; i < t.returned.size(); ++i)
    if (t.returned[i] < 0)
      each_tensor(results[i], [&](const at::Tensor& tensor) {
        values_.made(tensor, true);
        return true;
      });
}

void VirtualKernels::fill(const OperatorTraits& t, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                          Stack* stack) {
  const auto geometry = factory_geometry(op, *stack);
  const bool is_like = t.takes_tensors || t.name.starts_with("aten::empty");
  const bool draws_there = t.draws && geometry.has_value() && !geometry->device.is_cpu();
  if (geometry.has_value() && (draws_there || geometry->bytes > largest_filled(geometry->dtype, is_like))) {
    if (t.draws) draw(torch::jit::last(*stack, op.schema().arguments().size()), /*token=*/true);
    torch::jit::drop(*stack, op.schema().arguments().size());
    stack->emplace_back(virtual_tensor(geometry->sizes, geometry->strides, geometry->dtype, geometry->device));
    return;
  }
  execute(t, op, below, stack);
}

// The call does not run. What it writes becomes unknown, what it returns gets a geometry.
void VirtualKernels::skip(const OperatorTraits& t, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                          Stack* stack) {
  const bool draws = really_draws(t, op, *stack);
  const CallDevice device = device_of_call(t.name, *stack, op.schema().arguments().size());
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  size_t bytes = 0;
  if (draws || t.shapes == nullptr)
    for (const c10::IValue& value : arguments)
      each_tensor(value, [&](const at::Tensor& tensor) {
        bytes += static_cast<size_t>(tensor.numel()) * tensor.element_size();
        return true;
      });
  for (size_t i : t.writes)
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      values_.mark(tensor, false);
      return true;
    });
  for (size_t i : t.outs)
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      USER_CHECK(tensor.numel() != 0,
                 "{} resizes its out= tensor, which virtual capture does not follow: give it one of the result's size",
                 t.name);
      return true;
    });
  const bool makes = std::any_of(t.returned.begin(), t.returned.end(), [](int argument) { return argument < 0; });
  const bool rehearse = draws ? bytes <= kLargestDrawRehearsal && !device.takes_device
                              : t.shapes == nullptr && bytes <= kLargestRehearsal;
  const auto keys = device.takes_device ? c10::DispatchKeySet(c10::DispatchKey::CPU) : below;
  if (draws) draw(arguments, /*token=*/!rehearse);
  Stack made;
  if (rehearse && (makes || draws))
    made = call_on_stand_ins(StandIns::Kind::kValues, device, arguments,
                             [&](Stack* stand_ins) { op.redispatchBoxed(keys, stand_ins); });
  else if (makes)
    made =
        call_on_stand_ins(StandIns::Kind::kMeta, device, arguments, [&](Stack* stand_ins) { shape(t, op, stand_ins); });
  for (size_t i = 0; i < t.returned.size(); ++i)
    stack->push_back(t.returned[i] < 0 ? std::move(made[i]) : arguments[static_cast<size_t>(t.returned[i])]);
}

void VirtualKernels::shape(const OperatorTraits& t, const c10::OperatorHandle& op, Stack* stack) {
  const c10::KernelFunction* kernel = t.shapes != nullptr ? t.shapes : t.slow_shapes;
  USER_CHECK(kernel != nullptr, "{} cannot be captured without running it: nothing tells the shape of its result",
             t.name);
  kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
}

// Before a call takes random numbers from its generator, or instead of it: a token changes the generator's state, as
// the call would, to another one.
void VirtualKernels::draw(c10::ArrayRef<c10::IValue> arguments, bool token) {
  at::Generator generator = generator_of(arguments);
  values_.keep(generator);
  if (!token) return;
  const std::lock_guard held(generator.mutex());
  if (!is_cpu_generator(generator)) return generator.set_offset(generator.get_offset() + kPhiloxOffset);
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
  cpu->random();
}

}  // namespace stepc
