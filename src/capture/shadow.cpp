#include "capture/shadow.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "aten/constants.h"
#include "aten/memory_regions.h"
#include "aten/operators.h"
#include "aten/virtual_memory.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "capture/observer.h"

namespace stepc {

namespace {
// What the shadow run does with one recorded call.
struct ShadowCall {
  CallId call;
  c10::OperatorHandle op;
  bool runs = false;                       // for real: a view, or one of the event's own calls
  std::vector<bool> is_number;             // arguments that the shadow run supplies
  std::vector<const Constant*> constants;  // by argument: what a tensor that was made from host data held, or nothing
};

bool is_number(const Arg& arg) {
  return std::holds_alternative<int64_t>(arg) || std::holds_alternative<double>(arg) ||
         std::holds_alternative<std::complex<double>>(arg) || std::holds_alternative<WrappedNumber>(arg) ||
         std::holds_alternative<ReadNumber>(arg) || std::holds_alternative<std::vector<double>>(arg);
}

// A 2 is not a 2.0: another type may come of it.
bool is_of_kind(const Arg& recorded, const c10::IValue& given, const c10::Argument& schema) {
  if (std::holds_alternative<ReadNumber>(recorded)) return true;
  if (!std::holds_alternative<WrappedNumber>(recorded)) {
    const auto number = constant_from_ivalue(given, schema);
    return number && number->index() == recorded.index();
  }
  if (!given.isTensor() || !given.toTensor().defined()) return false;
  const auto number = wrapped_number_of(given.toTensor());
  return number && number->number.index() == std::get<WrappedNumber>(recorded).number.index();
}

// The content of a value that was made from host data inside the event.
const Constant* constant_of(const Trace& trace, const Arg& arg) {
  const auto* value = std::get_if<ValueId>(&arg);
  if (value == nullptr || !value->valid()) return nullptr;
  const auto external = std::ranges::find_if(trace.externals, [&](const External& one) {
    return one.owner == Owner::kConstant &&
           trace.values[one.value.index()].storage == trace.values[value->index()].storage;
  });
  if (external == trace.externals.end()) return nullptr;
  const auto found = std::ranges::find(trace.constants, external->key, &Constant::key);
  return found == trace.constants.end() ? nullptr : &*found;
}

bool looks_like(const at::Tensor& tensor, const Value& value) {
  return tensor.scalar_type() == scalar_type_of(value.dtype) && tensor.sizes() == at::IntArrayRef(value.sizes);
}

bool holds(const at::Tensor& tensor, const Value& value, const Constant& constant) {
  if (!tensor.has_storage() || tensor.storage().data() == nullptr) return true;  // made by a call, which was compared
  if (!tensor.device().is_cpu() || !tensor.is_contiguous() || !is_contiguous(value)) return false;
  const size_t offset = value.offset * size_of(value.dtype);
  return offset + tensor.nbytes() <= constant.bytes.size() &&
         std::memcmp(tensor.const_data_ptr(), constant.bytes.data() + offset, tensor.nbytes()) == 0;
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}
}  // namespace

at::Tensor stand_in(const Trace& trace, const Value& value) {
  const int64_t bytes = extent_of(value) * size_of(value.dtype);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(nullptr, device_of(trace, value.storage)), nullptr, false);
  return tensor_on(storage, value.sizes, value.strides, value.offset, scalar_type_of(value.dtype));
}

class Shadow::Observer final : public CallObserver {
 public:
  Observer(const Trace& trace, const HostEvent& event) : trace_(trace) {
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
      const Call& call = trace.calls[c];
      ShadowCall one{CallId(c), find_operator(call.op), false, {}, {}};
      one.runs = is_view(trace, call) || std::binary_search(event.own_calls.begin(), event.own_calls.end(), CallId(c));
      for (const Arg& arg : call.args) {
        one.is_number.push_back(is_number(arg));
        one.constants.push_back(constant_of(trace, arg));
      }
      calls_.push_back(std::move(one));
    }
  }

  void begin(const SupplyFn* supply) {
    supply_ = supply;
    next_ = 0;
    difference_.clear();
  }
  std::string end() {
    if (difference_.empty() && next_ != calls_.size())
      difference_ = str("it made {} calls and {} were recorded", next_, calls_.size());
    return std::move(difference_);
  }

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override {
    if (difference_.empty() && (next_ == calls_.size() || !(calls_[next_].op == op)))
      difference_ = str("it calls {} where {} was recorded", op.schema().name(),
                        next_ == calls_.size() ? "nothing" : trace_.calls[calls_[next_].call.index()].op);
    if (!difference_.empty())
      throw std::runtime_error(difference_);  // leaves the host code; run() turns it into an answer
    const ShadowCall& recorded = calls_[next_++];
    supply(recorded, *stack);
    if (!difference_.empty()) throw std::runtime_error(difference_);  // before it runs on what is not its own
    if (recorded.runs)
      op.redispatchBoxed(below, stack);
    else
      skip(recorded, stack);
  }

 private:
  void supply(const ShadowCall& recorded, const torch::jit::Stack& stack) {
    const Call& call = trace_.calls[recorded.call.index()];
    const auto args = torch::jit::last(stack, call.args.size());
    const auto& schema = recorded.op.schema().arguments();
    for (size_t i = 0; i < call.args.size(); ++i) {
      if (recorded.is_number[i]) {
        if (!is_of_kind(call.args[i], args[i], schema[i]))
          difference_ =
              str("it passes another kind of number as '{}' to {} than was recorded", schema[i].name(), call.op);
        else
          (*supply_)(recorded.call, i, args[i]);
      } else if (args[i].isTensor()) {
        const auto* id = std::get_if<ValueId>(&call.args[i]);
        const at::Tensor& tensor = args[i].toTensor();
        if (id == nullptr || !id->valid() || !tensor.defined()) continue;
        const Value& value = trace_.values[id->index()];
        if (!looks_like(tensor, value))
          difference_ = str("it passes another tensor as '{}' to {} than was recorded", schema[i].name(), call.op);
        else if (recorded.constants[i] != nullptr && !holds(tensor, value, *recorded.constants[i]))
          difference_ = str("it passes other host data as '{}' to {} than was recorded", schema[i].name(), call.op);
      } else if (!args[i].isTensor() && !args[i].isList()) {
        const auto constant = constant_from_ivalue(args[i], schema[i]);
        if (!constant || *constant != call.args[i])
          difference_ = str("it passes another '{}' to {} than was recorded", schema[i].name(), call.op);
      } else if (args[i].isTensorList()) {
        const auto* list = std::get_if<std::vector<ValueId>>(&call.args[i]);
        if (list == nullptr || list->size() != args[i].toListRef().size())
          difference_ = str("it passes another number of tensors to {} than was recorded", call.op);
      }
    }
  }

  // Leaves results that look right: what an in-place call was given, stand-ins for what it would make.
  void skip(const ShadowCall& recorded, torch::jit::Stack* stack) {
    const Call& call = trace_.calls[recorded.call.index()];
    const auto& schema = recorded.op.schema();
    std::vector<c10::IValue> written;
    const auto args = torch::jit::last(*stack, schema.arguments().size());
    for (size_t i = 0; i < args.size(); ++i)
      if (writes(schema.arguments()[i])) written.push_back(args[i]);
    std::vector<c10::IValue> results;
    for (size_t r = 0; r < schema.returns().size(); ++r) {
      if (writes(schema.returns()[r]) && !written.empty()) {
        results.push_back(written[std::min(r, written.size() - 1)]);
      } else if (const auto* value = std::get_if<ValueId>(&call.results[r])) {
        results.emplace_back(value->valid() ? stand_in(trace_, trace_.values[value->index()]) : at::Tensor());
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r])) {
        c10::List<at::Tensor> tensors;
        for (ValueId id : *list)
          tensors.push_back(id.valid() ? stand_in(trace_, trace_.values[id.index()]) : at::Tensor());
        results.emplace_back(std::move(tensors));
      } else {
        results.push_back(constant_to_ivalue(call.results[r], schema.returns()[r]));
      }
    }
    torch::jit::drop(*stack, schema.arguments().size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

 private:
  const Trace& trace_;
  std::vector<ShadowCall> calls_;
  const SupplyFn* supply_ = nullptr;
  size_t next_ = 0;
  std::string difference_;
};

Shadow::Shadow(const Trace& trace, size_t index) : observer_(std::make_shared<Observer>(trace, trace.events[index])) {}
Shadow::~Shadow() = default;

std::string Shadow::run(const std::function<void()>& host_code, const SupplyFn& supply) {
  observer_->begin(&supply);
  try {
    const ObserverScope scope(observer_);
    host_code();
  } catch (const Interrupt&) {
    throw;
  } catch (...) {
    // Through Python the exception comes back as another type: what counts is that the run strayed.
    if (std::string difference = observer_->end(); !difference.empty()) return difference;
    throw;
  }
  return observer_->end();
}

}  // namespace stepc
