#include "engine/compare/calls_in_float64.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>

#include "aten/operators.h"
#include "capture/observer.h"
#include "engine/compare/run_on_own_thread.h"
#include "engine/compare/value_distance.h"

namespace stepc {

namespace {

using Tensors = std::vector<at::Tensor>;

// The largest error of a correct kernel, relative to the result: some tens of roundings.
double bound_of(at::ScalarType type) { return type == at::kFloat ? 1e-5 : 1e-2; }
bool is_narrow(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble &&
         tensor.element_size() > 1;
}

void append_tensors(const c10::IValue& value, Tensors& out) {
  if (value.isTensor()) out.push_back(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(tensor);
}

at::Tensor widened(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return is_narrow(tensor) ? tensor.to(at::kDouble) : tensor.clone();
}

// The argument in float64, in memory of its own; the call in float64 writes there.
c10::IValue widened(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isTensor()) return widened(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(widened(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(widened(*tensor)) : std::nullopt);
    return list;
  }
  c10::TypePtr type = argument.real_type();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType();
  const bool names_floats = type->kind() == c10::TypeKind::ScalarTypeType && value.isInt() &&
                            at::isFloatingType(static_cast<at::ScalarType>(value.toInt()));
  return names_floats ? c10::IValue(at::kDouble) : value;
}

// Whether a call computes something. A call that returns a view of an operand does not.
bool computes(const c10::FunctionSchema& schema) {
  return std::ranges::none_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

// A call from its begin to its end.
struct Call : at::ObserverContext {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // in float64
  Tensors written;                     // operands that the call changes
  std::vector<size_t> places;          // their arguments
  Call(c10::OperatorHandle op) : op(std::move(op)) {}
};

}  // namespace

struct CallsInFloat64::Calls {
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  int depth = 0;  // calls within calls are theirs
  std::vector<Replaced> replaced;

  std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
    if (depth++ > 0 || current_observer() != nullptr) return nullptr;  // host code's calls have no kernels
    const auto name = fn.operator_name();
    const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
    const c10::ArrayRef<const c10::IValue> inputs = fn.inputs();
    if (!op || !computes(op->schema()) || inputs.size() != op->schema().arguments().size()) return nullptr;
    auto call = std::make_unique<Call>(*op);
    bool is_narrow_call = false;
    for (size_t a = 0; a < inputs.size(); ++a) {
      Tensors given;
      append_tensors(inputs[a], given);
      is_narrow_call = is_narrow_call || std::ranges::any_of(given, is_narrow);
      const c10::AliasInfo* alias = op->schema().arguments()[a].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      call->written.insert(call->written.end(), given.begin(), given.end());
      call->places.push_back(a);
    }
    if (!is_narrow_call) return nullptr;
    run_on_own_thread([&] {
      for (size_t a = 0; a < inputs.size(); ++a)
        call->arguments.push_back(widened(inputs[a], op->schema().arguments()[a]));
    });
    return call;
  }

  void end(const at::RecordFunction& fn, at::ObserverContext* context) {
    --depth;
    if (context == nullptr) return;
    auto& call = *static_cast<Call*>(context);
    Tensors results = call.written;
    for (const c10::IValue& output : fn.outputs()) append_tensors(output, results);
    std::optional<Replaced> worst;
    try {
      run_on_own_thread([&] {
        Tensors wide;
        torch::jit::Stack stack = call.arguments;
        call.op.callBoxed(&stack);
        for (size_t a : call.places) append_tensors(call.arguments[a], wide);
        for (const c10::IValue& output : stack) append_tensors(output, wide);
        if (wide.size() != results.size()) return;
        for (size_t r = 0; r < wide.size(); ++r) {
          const double error = replace_if_far(results[r], wide[r]);
          if (error > 0 && (!worst || worst->error < error)) worst = Replaced{name_of(call.op), error};
        }
      });
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it has no kernel in float64
    }
    if (worst) replaced.push_back(std::move(*worst));
  }

  // Returns the error of the replaced result; 0 if nothing was replaced.
  static double replace_if_far(const at::Tensor& result, const at::Tensor& wide) {
    if (!is_narrow(result) || !wide.defined() || result.sizes() != wide.sizes()) return 0;
    const at::Tensor right = wide.to(result.scalar_type());
    const ValueDistance distance = value_distance(result, right);
    if (!distance.finite_alike || distance.apart <= bound_of(result.scalar_type()) * distance.rms) return 0;
    result.copy_(right);
    return distance.apart / std::max(distance.rms, 1e-300);
  }
};

namespace {
thread_local CallsInFloat64::Calls* t_calls = nullptr;  // LibTorch's callbacks are functions without a context
}

CallsInFloat64::CallsInFloat64() : calls_(std::make_unique<Calls>()) {
  t_calls = calls_.get();
  calls_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& fn) { return t_calls->begin(fn); },
          [](const at::RecordFunction& fn, at::ObserverContext* context) { t_calls->end(fn, context); })
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}
CallsInFloat64::~CallsInFloat64() {
  at::removeCallback(calls_->callback);
  t_calls = nullptr;
}

const std::vector<CallsInFloat64::Replaced>& CallsInFloat64::replaced() const { return calls_->replaced; }

}  // namespace stepc
