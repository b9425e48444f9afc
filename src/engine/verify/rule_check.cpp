#include "engine/verify/rule_check.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include "aten/constants.h"
#include "aten/operators.h"
#include "base/check.h"
#include "capture/observer.h"
#include "engine/compare/run_on_own_thread.h"
#include "engine/compare/tensor_hash.h"
#include "engine/compare/value_distance.h"
#include "ops/rules/sharding_rule.h"

namespace stepc {

namespace {

using Tensors = std::vector<at::Tensor>;

// The allowed difference of results computed in another order, relative to the root mean square of the whole.
double bound_of(at::ScalarType type) { return type == at::kDouble ? 1e-10 : type == at::kFloat ? 1e-4 : 3e-2; }

void append_tensors(const c10::IValue& value, Tensors& out) {
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) out.push_back(tensor);
  };
  if (value.isTensor()) add(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) add(*tensor);
}

// The arguments with other operands, in the order of append_tensors().
std::vector<c10::IValue> with_operands(const std::vector<c10::IValue>& arguments, const Tensors& operands) {
  size_t next = 0;
  const auto other = [&](const at::Tensor& tensor) { return tensor.defined() ? operands[next++] : tensor; };
  std::vector<c10::IValue> out;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      out.emplace_back(other(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(other(tensor));
      out.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(other(*tensor)) : std::nullopt);
      out.emplace_back(std::move(list));
    } else {
      out.push_back(value);
    }
  }
  return out;
}

std::vector<TensorType> types_of(const Tensors& tensors) {
  std::vector<TensorType> types;
  for (const at::Tensor& tensor : tensors) types.push_back({dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  return types;
}

std::optional<int64_t> dim_of(const ShardingRule::Dims& dims, int factor) {
  for (size_t d = 0; d < dims.size(); ++d)
    if (std::ranges::find(dims[d], factor) != dims[d].end()) return static_cast<int64_t>(d);
  return std::nullopt;
}

at::Tensor combined(Factor::Kind kind, const at::Tensor& first, const at::Tensor& second) {
  switch (kind) {
    case Factor::Kind::kMax:
      return at::maximum(first, second);
    case Factor::Kind::kMin:
      return at::minimum(first, second);
    default:
      return at::add(first, second);
  }
}

std::string_view way_of(Factor::Kind kind) {
  constexpr std::string_view kWays[] = {"put together", "summed", "at their maximum", "at their minimum"};
  return kWays[static_cast<size_t>(kind)];
}

// A call from its begin to its end.
struct SplitCall : at::ObserverContext {
  c10::OperatorHandle op;
  const DimNames* dims;  // nullptr: nothing is said of splitting it
  std::vector<c10::IValue> arguments;
  Tensors operands;              // among them
  std::vector<uint64_t> hashes;  // of those
  std::string kind;
  SplitCall(c10::OperatorHandle op, const DimNames* dims) : op(std::move(op)), dims(dims) {}
};

// The results of the call on one half of the operands that have the factor.
Tensors half(const SplitCall& call, const Tensors& operands, const ShardingRule& rule, int factor, bool second) {
  const int64_t size = rule.factors[static_cast<size_t>(factor)].size;
  const int64_t middle = size / 2;
  Tensors parts = operands;
  for (size_t i = 0; i < parts.size(); ++i)
    if (const auto dim = dim_of(rule.operands[i], factor))
      parts[i] = parts[i]
                     .narrow(*dim, second ? middle : 0, second ? size - middle : middle)
                     .clone(at::MemoryFormat::Contiguous);
  torch::jit::Stack stack = with_operands(call.arguments, parts);
  call.op.callBoxed(&stack);
  Tensors results;
  for (const c10::IValue& result : stack) append_tensors(result, results);
  return results;
}

// Describes how the halves differ from the whole; empty if they agree.
std::string difference(const at::Tensor& halves, const at::Tensor& whole) {
  if (halves.sizes() != whole.sizes())
    return str("are [{}] and not [{}]", fmt::join(halves.sizes(), ", "), fmt::join(whole.sizes(), ", "));
  if (whole.numel() == 0) return {};
  if (!whole.is_floating_point()) return at::equal(halves, whole) ? "" : "are other values";
  const ValueDistance distance = value_distance(halves.to(whole.scalar_type()), whole);
  if (!distance.finite_alike) return "are not finite in the same places";
  if (distance.apart <= bound_of(whole.scalar_type()) * distance.rms) return {};
  return str("are {:.2g} away from it, of {:.2g}", distance.apart, distance.rms);
}

std::string wrong_along(const SplitCall& call, const Tensors& operands, const Tensors& results,
                        const ShardingRule& rule, int factor) {
  const Factor& one = rule.factors[static_cast<size_t>(factor)];
  std::string place, name;
  for (size_t i = 0; i < rule.operands.size() && place.empty(); ++i)
    if (const auto dim = dim_of(rule.operands[i], factor)) {
      place = str("dimension {} of operand {}", *dim, i);
      name = call.dims->operands[i][static_cast<size_t>(*dim)];
    }
  const auto sentence = [&](const std::string& what) {
    return str("op_rule {}: sharding \"{}\" says that '{}' ({}) may be split, but {}; mend it, or write '_' for '{}'",
               name_of(call.op), to_text(*call.dims), name, place, what, name);
  };
  Tensors halves[2];
  try {
    for (const bool second : {false, true}) halves[second ? 1 : 0] = half(call, operands, rule, factor, second);
  } catch (const std::exception& error) {
    return sentence(str("the operator does not run on one half: {}", first_line(error.what())));
  }
  for (size_t r = 0; r < results.size(); ++r) {
    const auto dim = dim_of(rule.results[r], factor);
    std::string what;
    try {
      const at::Tensor together = dim ? at::cat({halves[0].at(r), halves[1].at(r)}, *dim)
                                      : combined(one.kind, halves[0].at(r), halves[1].at(r));
      what = difference(together, results[r]);
    } catch (const std::exception& error) {
      what = str("do not fit together: {}", first_line(error.what()));
    }
    if (!what.empty())
      return sentence(
          str("two halves of result {}, {}, {}", r, way_of(dim ? Factor::Kind::kParallel : one.kind), what));
  }
  return {};
}

}  // namespace

struct RuleCheck::Calls {
  // By operator and number of tensors, because an optional tensor may be left out: the names of dimensions of calls
  // with a rule.
  std::map<std::pair<std::string, size_t>, const DimNames*> dims;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
  int depth = 0;               // calls within calls are theirs
  std::set<std::string> seen;  // kinds of call
  std::string wrong;

  std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
    if (depth++ > 0 || current_observer() != nullptr || !wrong.empty()) return nullptr;
    const auto name = fn.operator_name();
    const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
    if (!op) return nullptr;
    Tensors operands;
    for (const c10::IValue& value : fn.inputs()) append_tensors(value, operands);
    const auto found = dims.find({name_of(*op), operands.size()});
    if (found == dims.end()) return nullptr;
    auto call = std::make_unique<SplitCall>(*op, found->second);
    call->kind = name_of(*op);
    for (const TensorType& type : types_of(operands)) call->kind += " " + to_text(type);
    if (!seen.insert(call->kind).second) return nullptr;
    call->arguments.assign(fn.inputs().begin(), fn.inputs().end());
    call->operands = std::move(operands);
    call->hashes = hashes_of(call->operands);
    return call;
  }

  void end(const at::RecordFunction& fn, at::ObserverContext* context) {
    --depth;
    if (context == nullptr) return;
    const auto& call = *static_cast<SplitCall*>(context);
    Tensors results;
    for (const c10::IValue& value : fn.outputs()) append_tensors(value, results);
    if (results.empty()) {  // it has thrown
      seen.erase(call.kind);
      return;
    }
    const std::vector<uint64_t> hashes = hashes_of(call.operands);
    if (const auto changed = std::ranges::mismatch(call.hashes, hashes).in1; changed != call.hashes.end()) {
      wrong =
          str("op_rule {}: it changes its operand {}, and a rule is for an operator that makes new results of its "
              "arguments; change a clone(), or say so in its schema and drop the rule",
              name_of(call.op), changed - call.hashes.begin());
      return;
    }
    if (call.dims == nullptr) return;
    try {
      run_on_own_thread([&] {
        const ShardingRule rule = named_rule(*call.dims, types_of(call.operands), types_of(results));
        for (size_t f = 0; f < rule.factors.size() && wrong.empty(); ++f)
          wrong = wrong_along(call, call.operands, results, rule, static_cast<int>(f));
      });
    } catch (const std::exception& error) {
      wrong = str("op_rule {}: {}", name_of(call.op), first_line(error.what()));
    }
  }

 private:
  static std::vector<uint64_t> hashes_of(const Tensors& tensors) {
    std::vector<uint64_t> hashes;
    run_on_own_thread([&] {
      for (const at::Tensor& tensor : tensors) hashes.push_back(hash_of(tensor));
    });
    return hashes;
  }
};

namespace {
thread_local RuleCheck::Calls* t_rules = nullptr;  // LibTorch's callbacks are functions without a context
}

RuleCheck::RuleCheck(const Trace& trace) {
  for (const Call& call : trace.calls) {
    if (!call.rule) continue;
    if (calls_ == nullptr) calls_ = std::make_unique<Calls>();
    auto tensors = static_cast<size_t>(
        std::ranges::count_if(call.args, [](const Arg& arg) { return std::holds_alternative<WrappedNumber>(arg); }));
    for_each_value(call.args, [&](ValueId id) { tensors += id.valid() ? 1 : 0; });
    calls_->dims.try_emplace({call.op, tensors}, call.rule->dims ? &*call.rule->dims : nullptr);
  }
  if (calls_ == nullptr) return;
  t_rules = calls_.get();
  calls_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& fn) { return t_rules->begin(fn); },
          [](const at::RecordFunction& fn, at::ObserverContext* context) { t_rules->end(fn, context); })
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}
RuleCheck::~RuleCheck() {
  if (calls_ == nullptr) return;
  at::removeCallback(calls_->callback);
  t_rules = nullptr;
}

std::string RuleCheck::wrong() const { return calls_ == nullptr ? std::string() : calls_->wrong; }

}  // namespace stepc
