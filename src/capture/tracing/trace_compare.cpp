// Whether what the step does is what was recorded, and in words what differs.
#include <algorithm>

#include "aten/memory_regions.h"
#include "aten/operators.h"
#include "base/check.h"
#include "capture/tracing/trace_observer.h"
#include "ir/agree.h"

namespace stepc {

void Tracer::Observer::meet(ValueId value, const at::Tensor& tensor) {
  MetStorage& met = met_[storage_of(value).index()];
  if (met.address != nullptr) return;
  met.address = tensor.storage().unsafeGetStorageImpl();
  met.is_made = !trace_.storages[storage_of(value).index()].external;
  const Value& window = trace_.values[value.index()];
  if (!met.is_made) met.shift = (tensor.storage_offset() - window.offset) * size_of(window.dtype);
  if (met.is_made) met.weak.emplace(tensor.storage().getWeakStorageImpl());
}

bool Tracer::Observer::adopt(const External& external, const at::Tensor& tensor) {
  const Value& window = trace_.values[external.value.index()];
  MetStorage& met = met_[window.storage.index()];
  c10::StorageImpl* const address = tensor.storage().unsafeGetStorageImpl();
  const bool is_written = written_[window.storage.index()];
  for (size_t s = 0; s < met_.size(); ++s)
    if (met_[s].address == address && (met_[s].is_made || written_[s] || is_written)) return false;
  const int64_t size = size_of(window.dtype);
  const bool is_window = tensor.sizes() == c10::IntArrayRef(window.sizes) &&
                         tensor.strides() == c10::IntArrayRef(window.strides) &&
                         tensor.scalar_type() == scalar_type_of(window.dtype);
  if (!is_window && tensor.storage().nbytes() != trace_.storages[window.storage.index()].bytes) return false;
  met.address = address;
  met.shift = is_window ? (tensor.storage_offset() - window.offset) * size : 0;
  kept_.push_back(tensor.storage());
  host_data_[external.key] = window_on(external.value, tensor.storage());
  return true;
}

bool Tracer::Observer::is_constant(StorageId storage, const at::Tensor& tensor) {
  if (!trace_.storages[storage.index()].external || met_[storage.index()].address != nullptr) return false;
  for (const External& external : trace_.externals) {
    const bool is_host_data = external.owner == Owner::kHost;
    if (storage_of(external.value) != storage || (external.owner != Owner::kConstant && !is_host_data)) continue;
    if (is_host_data) return adopt(external, tensor);
    const auto found = std::ranges::find(trace_.constants, external.key, &Constant::key);
    if (found == trace_.constants.end() || tensor.storage().nbytes() != found->bytes.size()) return false;
    if (bytes_of(tensor.storage()) != found->bytes) return false;
    met_[storage.index()].address = tensor.storage().unsafeGetStorageImpl();
    kept_.push_back(tensor.storage());
    return true;
  }
  return false;
}

bool Tracer::Observer::is_value(const at::Tensor& tensor, ValueId id) {
  if (!id.valid() || !tensor.defined()) return !id.valid() && !tensor.defined();
  if (!is_planned(tensor)) return false;
  const Value& value = trace_.values[id.index()];
  const MetStorage& met = met_[value.storage.index()];
  const bool known = met.address == tensor.storage().unsafeGetStorageImpl();
  if (!known && !is_constant(value.storage, tensor)) return false;
  return tensor.sizes() == c10::IntArrayRef(value.sizes) && tensor.strides() == c10::IntArrayRef(value.strides) &&
         tensor.storage_offset() * size_of(value.dtype) == value.offset * size_of(value.dtype) + met.shift &&
         tensor.scalar_type() == scalar_type_of(value.dtype) && tensor.is_conj() == value.conj &&
         tensor.is_neg() == value.neg;
}

bool Tracer::Observer::are_values(const c10::IValue& given, const std::vector<ValueId>& ids) {
  if (!given.isList()) return false;
  const auto list = given.toListRef();
  if (list.size() != ids.size()) return false;
  for (size_t i = 0; i < ids.size(); ++i)
    if (!is_value(list[i].isNone() ? at::Tensor() : list[i].toTensor(), ids[i])) return false;
  return true;
}

bool Tracer::Observer::is_generator(const c10::IValue& given, GeneratorArg expected) {
  return given.isGenerator() && states_.is_generator(given.toGenerator(), expected.generator);
}

bool Tracer::Observer::is_same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isDouble() && b.isDouble()) return same_number(a.toDouble(), b.toDouble());
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isDouble() || b.isDouble() || a.isInt() || b.isInt() || a.isBool() || b.isBool()) return false;
  if (a.isIntList() && b.isIntList()) return a.toIntVector() == b.toIntVector();
  return false;
}

bool Tracer::Observer::follows(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool takes) {
  why_ = nullptr;
  departure_.is_reseeded = false;
  if (next_ == expected_.size() || is_at_pause()) return false;
  const ExpectedCall& expected = expected_[next_];
  if (!(expected.op == op)) return false;
  const Call& call = trace_.calls[next_];
  const auto args = torch::jit::last(stack, call.args.size());
  const auto& schema = op.schema().arguments();
  const size_t supplied = supplied_.size();
  for (size_t i = 0; i < call.args.size(); ++i) {
    const bool same = is_argument(expected, call.args[i], args[i], i, schema[i]);
    if (same) continue;
    why_ = &schema[i];
    supplied_.resize(supplied);
    return false;
  }
  departure_.is_reseeded = computes_ ? !states_.is_seeded_as_recorded(next_) : !states_.are_as_recorded(next_);
  if (departure_.is_reseeded) return false;
  if (!takes) supplied_.resize(supplied);
  return true;
}

bool Tracer::Observer::is_argument(const ExpectedCall& expected, const Arg& arg, const c10::IValue& given, size_t index,
                                   const c10::Argument& schema) {
  if (const auto* wrapped = std::get_if<WrappedNumber>(&arg)) {
    if (!given.isTensor() || !given.toTensor().defined()) return false;
    const auto number = wrapped_number_of(given.toTensor());
    if (!number || number->number.index() != wrapped->number.index()) return false;
    if (expected.supplied) return supply(index, given);
    return *number == *wrapped;
  }
  if (const auto* value = std::get_if<ValueId>(&arg)) {
    if (given.isNone()) return !value->valid();
    return given.isTensor() && is_value(given.toTensor(), *value);
  }
  if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) return are_values(given, *list);
  if (const auto* generator = std::get_if<GeneratorArg>(&arg)) return is_generator(given, *generator);
  if (is_given_by_host(expected, arg)) return true;
  const c10::IValue& constant = expected.constants[index];
  if (is_same(constant, given)) return !expected.supplied || !is_any_number(arg) || supply(index, given);
  if (expected.supplied && is_any_number(arg)) {
    const auto other = constant_from_ivalue(given, schema);
    return other && other->index() == arg.index() && supply(index, given);
  }
  if (given.isTensor() || given.isDouble() || given.isInt() || given.isBool() || given.isNone()) return false;
  const auto other = constant_from_ivalue(given, schema);
  return other && *other == arg;
}

bool Tracer::Observer::supply(size_t arg, const c10::IValue& number) {
  supplied_.push_back({CallId(next_), arg, number});
  return true;
}

std::string Tracer::Observer::difference_of(const c10::OperatorHandle& op) const {
  const std::string name = name_of(op);
  if (next_ == expected_.size()) return str("it calls {} where nothing more was recorded", name);
  if (is_at_pause()) return str("it calls {} where nothing more was recorded before the pause", name);
  const Call& call = trace_.calls[next_];
  const std::string where = call.module.empty() ? std::string() : str(" in '{}'", call.module);
  if (departure_.is_reseeded)
    return str(
        "a random generator is in another state before {}{} than was recorded: a seed that changes from step "
        "to step is no number of a plan",
        name, where);
  if (why_ == nullptr) return str("it calls {} where {}{} was recorded", name, call.op, where);
  return str("it passes another '{}' to {}{} than was recorded", why_->name(), call.op, where);
}

}  // namespace stepc
