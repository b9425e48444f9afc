// In place of computing: what calls make looks right and has no memory.
#include <algorithm>

#include "aten/memory_regions.h"
#include "base/check.h"
#include "capture/tracing/trace_observer.h"

namespace stepc {

namespace {
bool declares_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}
}  // namespace

void Tracer::Observer::meet_results(CallId id, const torch::jit::Stack& stack) {
  const Call& call = trace_.calls[id.index()];
  const auto values = torch::jit::last(stack, call.results.size());
  for (size_t r = 0; r < call.results.size(); ++r) {
    const auto one = [&](ValueId value, const at::Tensor& tensor) {
      if (!value.valid() || !tensor.defined() || !tensor.has_storage()) return;
      const auto host = host_of_.find(storage_of(value));
      if (host == host_of_.end())
        meet(value, tensor);
      else if (met_[storage_of(value).index()].address == nullptr)
        adopt(*host->second, tensor);
    };
    if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
      if (values[r].isTensor()) one(*value, values[r].toTensor());
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
      const auto tensors = values[r].toTensorVector();
      for (size_t t = 0; t < list->size() && t < tensors.size(); ++t) one((*list)[t], tensors[t]);
    }
  }
}

at::Tensor Tracer::Observer::made(ValueId id) {
  if (!id.valid()) return {};
  const StorageId storage = storage_of(id);
  MetStorage& met = met_[storage.index()];
  if (met.address == nullptr) {
    const auto bytes = static_cast<int64_t>(trace_.storages[storage.index()].bytes);
    at::Tensor tensor = window_on(id, unreadable_storage(bytes, device_of(trace_, storage_of(id))));
    meet(id, tensor);
    return tensor;
  }
  // Another window on what an earlier result of the same call lies on.
  const auto held = met.weak->lock();
  INTERNAL_CHECK(held, "a call makes a window on memory that is gone");
  return window_on(id, c10::Storage(held));
}

at::Tensor Tracer::Observer::window_on(ValueId id, const c10::Storage& storage) const {
  const Value& value = trace_.values[id.index()];
  const int64_t shift = met_[value.storage.index()].shift / size_of(value.dtype);
  at::Tensor tensor = tensor_on(storage, value.sizes, value.strides, value.offset + shift, scalar_type_of(value.dtype));
  if (value.conj) tensor._set_conj(true);
  if (value.neg) tensor._set_neg(true);
  return tensor;
}

void Tracer::Observer::skip(CallId id, torch::jit::Stack* stack) {
  const Call& call = trace_.calls[id.index()];
  const auto& schema = expected_[id.index()].op.schema();
  std::vector<c10::IValue> written;
  const auto args = torch::jit::last(*stack, schema.arguments().size());
  for (size_t i = 0; i < args.size(); ++i)
    if (declares_write(schema.arguments()[i])) written.push_back(args[i]);
  states_.skipped(id.index());
  for (ValueId value : call.writes) {
    c10::StorageImpl* const storage = met_[storage_of(value).index()].address;
    stale_.insert(storage);
    if (filled_.erase(storage_of(value)) != 0) make_unreadable(*storage);
  }
  std::vector<c10::IValue> results;
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    if (declares_write(schema.returns()[r]) && !written.empty()) {
      results.push_back(written[std::min(r, written.size() - 1)]);
    } else if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
      results.emplace_back(made(*value));
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
      c10::List<at::Tensor> tensors;
      for (ValueId one : *list) tensors.push_back(made(one));
      results.emplace_back(std::move(tensors));
    } else {
      results.push_back(constant_to_ivalue(call.results[r], schema.returns()[r]));
    }
  }
  torch::jit::drop(*stack, schema.arguments().size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
  note_made(expected_[id.index()].op, *stack);
}

bool Tracer::Observer::changes_shown(const Call& call) const {
  return !computes_ && !shown_.empty() && std::ranges::any_of(call.writes, [&](ValueId value) {
    return shown_.contains(met_[storage_of(value).index()].address);
  });
}

void Tracer::Observer::give_number(size_t event, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Arg number = callbacks_->read(event);
  states_.ran();
  note_number(CallId(next_ - 1), number);
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->push_back(constant_to_ivalue(number, op.schema().returns().at(0)));
}

void Tracer::Observer::note_number(CallId id, const Arg& number) {
  numbers_[id.index()] = number;
  departure_.decided =
      are_other_choices(number, trace_.calls[id.index()].results.front()) ? place_of_read(trace_, id) : "";
}

}  // namespace stepc
