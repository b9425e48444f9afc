// Calls that the host makes itself, on what the plan has computed for them by then.
#include <algorithm>

#include "aten/memory_regions.h"
#include "aten/operators.h"
#include "base/check.h"
#include "capture/tracing/trace_observer.h"

namespace stepc {

bool Tracer::Observer::is_given_by_host(const ExpectedCall& expected, const Arg& arg) {
  return expected.made_by_host && !std::holds_alternative<ValueId>(arg) &&
         !std::holds_alternative<std::vector<ValueId>>(arg);
}

void Tracer::Observer::make_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const auto args = torch::jit::last(*stack, op.schema().arguments().size());
  torch::jit::Stack own(args.begin(), args.end());
  std::vector<at::Tensor> given;
  if (!computes_) {
    given = callbacks_->reach(*expected_[next_].made_by_host);
    states_.ran();
    put(given, own);
  }
  calls_host_ = true;
  try {
    run(op, below, &own);
  } catch (...) {
    calls_host_ = false;
    departure_.raised = true;
    stray(str("{} ends with an error", name_of(op)), /*records=*/false);
    throw;
  }
  calls_host_ = false;
  if (makes(next_, own)) return take(own, stack);  // what is recorded gives nothing back that it is given
  const std::string& line = trace_.events[*expected_[next_].made_by_host].key;
  const std::string why = str("{}{} makes a tensor whose shape depends on data", name_of(op),
                              line.empty() ? std::string() : str(" (at {})", line));
  const auto makes_it = [&](Observer& other) {
    return other.next_ < other.expected_.size() && other.expected_[other.next_].made_by_host.has_value() &&
           other.follows(op, *stack) && other.makes(other.next_, own);
  };
  if (hand_over(makes_it)) return heir_->take(own, stack);
  stray(why, /*records=*/false);  // the call is made
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (c10::IValue& result : own) stack->push_back(std::move(result));
}

void Tracer::Observer::put(const std::vector<at::Tensor>& given, torch::jit::Stack& args) const {
  const Call& call = trace_.calls[next_];
  size_t next = 0;
  for (size_t a = 0; a < args.size(); ++a) {
    if (const auto* value = std::get_if<ValueId>(&call.args[a])) {
      if (value->valid()) args[a] = given.at(next++);
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.args[a])) {
      c10::List<at::Tensor> tensors;
      c10::List<std::optional<at::Tensor>> optionals;
      for (ValueId id : *list) {
        const at::Tensor tensor = id.valid() ? given.at(next++) : at::Tensor();
        tensors.push_back(tensor);
        optionals.push_back(id.valid() ? std::optional(tensor) : std::nullopt);
      }
      args[a] = args[a].isOptionalTensorList() ? c10::IValue(optionals) : c10::IValue(tensors);
    }
  }
}

template <class F>
void Tracer::Observer::for_each_result(CallId id, const torch::jit::Stack& values, F&& f) const {
  const Call& call = trace_.calls[id.index()];
  for (size_t r = 0; r < call.results.size(); ++r) {
    if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
      f(*value, values[r].isTensor() ? values[r].toTensor() : at::Tensor());
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
      const auto tensors = values[r].toTensorVector();
      for (size_t t = 0; t < std::max(list->size(), tensors.size()); ++t)
        f(t < list->size() ? (*list)[t] : ValueId(), t < tensors.size() ? tensors[t] : at::Tensor());
    }
  }
}

bool Tracer::Observer::makes(size_t c, const torch::jit::Stack& results) const {
  bool same = true;
  for_each_result(CallId(c), results, [&](ValueId id, const at::Tensor& made) {
    if (!id.valid() || !made.defined()) return void(same = same && id.valid() == made.defined());
    const Value& value = trace_.values[id.index()];
    same = same && is_planned(made) && made.sizes() == c10::IntArrayRef(value.sizes) &&
           made.strides() == c10::IntArrayRef(value.strides) && made.storage_offset() == value.offset &&
           made.scalar_type() == scalar_type_of(value.dtype) && made.is_conj() == value.conj &&
           made.is_neg() == value.neg;
  });
  return same;
}

void Tracer::Observer::take(torch::jit::Stack& results, torch::jit::Stack* stack) {
  const CallId id(next_++);
  for_each_result(id, results, [&](ValueId value, const at::Tensor& made) {
    if (!value.valid()) return;
    meet(value, made);
    kept_.push_back(made.storage());
    for (const External& external : trace_.externals)
      if (external.owner == Owner::kHost && external.value == value) host_data_[external.key] = made;
  });
  torch::jit::drop(*stack, trace_.calls[id.index()].args.size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace stepc
