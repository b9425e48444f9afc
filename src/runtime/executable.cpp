#include "runtime/executable.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "aten/constants.h"
#include "base/check.h"
#include "runtime/arena.h"
#include "runtime/bound_values.h"

namespace stepc {

namespace {

c10::OperatorHandle find_op(const std::string& op) {
  const size_t dot = op.find('.', op.find("::"));
  const std::string name = op.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  const auto found = c10::Dispatcher::singleton().findSchema({name, overload});
  USER_CHECK(found.has_value(), "the trace calls {}, which this LibTorch does not have", op);
  return *found;
}

// An argument, ready to be pushed: a constant, a value, or a list of values.
struct BoundArg {
  enum class Kind : uint8_t { kConstant, kValue, kList, kOptionalList };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  ValueId value;
  std::vector<ValueId> list;
  bool lasting = false;  // a list of arena and bound values only: built once for each binding
  c10::IValue built;
  uint64_t built_for = 0;
};

// A result that defines a storage: where it must lie, or that it is handed out.
struct BoundResult {
  size_t position = 0;   // among the call's results
  ssize_t element = -1;  // within a list result
  ValueId value;
};

struct BoundCall {
  c10::OperatorHandle op;
  std::vector<BoundArg> args;
  std::vector<BoundResult> results;
};

bool is_optional_list(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  return type->kind() == c10::TypeKind::ListType &&
         type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
}

}  // namespace

struct Executable::Impl {
  Trace trace;
  Schedule schedule;
  PlannedMemory memory;
  BoundValues values;
  std::vector<BoundCall> calls;  // one an instruction
  torch::jit::Stack stack;

  Impl(Trace t, Schedule s) : trace(std::move(t)), schedule(std::move(s)), memory(schedule), values(trace, schedule) {
    std::vector<bool> defined(trace.storages.size(), false);
    for (size_t i = 0; i < defined.size(); ++i) defined[i] = trace.storages[i].external;
    for (const Instruction& instruction : schedule.instructions)
      calls.push_back(bind_call(trace.calls[instruction.call.index()], defined));
  }

  BoundArg bind_arg(const Arg& arg, const c10::Argument& argument) const {
    BoundArg bound;
    if (const auto* value = std::get_if<ValueId>(&arg)) {
      bound.kind = BoundArg::Kind::kValue;
      bound.value = *value;
      if (!value->valid()) {
        bound.kind = BoundArg::Kind::kConstant;
        bound.constant = at::Tensor();
      }
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      bound.kind = is_optional_list(argument) ? BoundArg::Kind::kOptionalList : BoundArg::Kind::kList;
      bound.list = *list;
      bound.lasting = std::all_of(list->begin(), list->end(), [&](ValueId v) { return !v.valid() || values.lasts(v); });
    } else {
      bound.constant = constant_to_ivalue(arg, argument);
    }
    return bound;
  }

  BoundCall bind_call(const Call& call, std::vector<bool>& defined) const {
    BoundCall bound{find_op(call.op), {}, {}};
    const auto& arguments = bound.op.schema().arguments();
    USER_CHECK(arguments.size() == call.args.size(), "the trace calls {} with {} arguments, this LibTorch's takes {}",
               call.op, call.args.size(), arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) bound.args.push_back(bind_arg(call.args[i], arguments[i]));
    const auto define = [&](ValueId value, size_t position, ssize_t element) {
      if (!value.valid()) return;
      const StorageId storage = trace.values[value.index()].storage;
      if (defined[storage.index()]) return;
      defined[storage.index()] = true;
      bound.results.push_back({position, element, value});
    };
    for (size_t r = 0; r < call.results.size(); ++r) {
      if (const auto* value = std::get_if<ValueId>(&call.results[r])) define(*value, r, -1);
      if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r]))
        for (size_t e = 0; e < list->size(); ++e) define((*list)[e], r, static_cast<ssize_t>(e));
    }
    return bound;
  }

  c10::IValue build_list(const BoundArg& arg) const {
    if (arg.kind == BoundArg::Kind::kList) {
      c10::List<at::Tensor> list;
      list.reserve(arg.list.size());
      for (ValueId value : arg.list) list.push_back(value.valid() ? values[value] : at::Tensor());
      return list;
    }
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(arg.list.size());
    for (ValueId value : arg.list)
      list.push_back(value.valid() ? std::optional<at::Tensor>(values[value]) : std::nullopt);
    return list;
  }

  void push(BoundArg& arg) {
    switch (arg.kind) {
      case BoundArg::Kind::kConstant:
        stack.push_back(arg.constant);
        return;
      case BoundArg::Kind::kValue:
        stack.emplace_back(values[arg.value]);
        return;
      case BoundArg::Kind::kList:
      case BoundArg::Kind::kOptionalList:
        if (!arg.lasting) {
          stack.push_back(build_list(arg));
          return;
        }
        if (arg.built_for != values.generation()) {
          arg.built = build_list(arg);
          arg.built_for = values.generation();
        }
        stack.push_back(arg.built);
        return;
    }
  }

  void take_result(const BoundResult& result) {
    const c10::IValue& value = stack[result.position];
    const at::Tensor tensor =
        result.element < 0 ? value.toTensor() : value.toTensorVector()[static_cast<size_t>(result.element)];
    values.define(result.value, tensor);
  }

  void run_instruction(size_t index) {
    BoundCall& call = calls[index];
    memory.begin(schedule.instructions[index]);
    stack.clear();
    for (BoundArg& arg : call.args) push(arg);
    call.op.callBoxed(&stack);
    for (const BoundResult& result : call.results) take_result(result);
  }

  // The run loop: everything has been decided.
  void run_instructions() {
    // Below autograd and autocast, where the calls were recorded.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard below_autocast(c10::autocast_dispatch_keyset);
    const AllocationScope scope(memory, /*watch_frees=*/false);
    size_t index = 0;
    try {
      for (; index < calls.size(); ++index) run_instruction(index);
    } catch (c10::Error& error) {
      const Call& call = trace.calls[schedule.instructions[index].call.index()];
      error.add_context(str("in the replayed step: call {} {}, {} of '{}'", schedule.instructions[index].call, call.op,
                            name_of(call.phase), call.module));
      throw;
    }
    stack.clear();
  }
};

Executable::Executable(Trace trace, Schedule schedule)
    : impl_(std::make_unique<Impl>(std::move(trace), std::move(schedule))) {}
Executable::~Executable() = default;

std::string Executable::why_not(const std::vector<at::Tensor>& externals) const {
  return impl_->values.why_not(externals);
}

StepResult Executable::run(const std::vector<at::Tensor>& externals) {
  Impl& impl = *impl_;
  Arena& arena = arena_of_this_thread();
  arena.grow_to(impl.schedule.arena_bytes);
  const BoundValues::Run bound(impl.values, externals, arena.base());
  impl.memory.begin_step(arena.base());
  impl.run_instructions();

  StepResult result;
  for (ValueId value : impl.trace.outputs) result.outputs.push_back(impl.values.hand_out(value));
  for (const GradientOut& gradient : impl.trace.gradients)
    result.gradients.emplace_back(gradient.key, impl.values.hand_out(gradient.value));
  impl.values.bump_versions(externals);
  result.memory = impl.memory.counts();
  return result;
}

const Trace& Executable::trace() const { return impl_->trace; }
const Schedule& Executable::schedule() const { return impl_->schedule; }

}  // namespace stepc
