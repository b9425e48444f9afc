#include "capture/op_rule.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include "aten/operators.h"
#include "base/check.h"
#include "ops/rules/sharding_rule.h"

namespace stepc {

namespace {

bool is_tensor(const c10::Argument& argument) { return argument.type()->kind() == c10::TypeKind::TensorType; }

bool is_optional_tensor(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}
bool takes_a_list_of_tensors(const c10::Argument& argument) {
  return !is_tensor(argument) && !is_optional_tensor(argument) &&
         argument.type()->str().find("Tensor") != std::string::npos;
}

void check_schema(const std::string& op, const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  for (const auto* arguments : {&schema.arguments(), &schema.returns()})
    for (const c10::Argument& argument : *arguments)
      USER_CHECK(argument.alias_info() == nullptr,
                 "op_rule {}: it changes or gives back what it is given ({}); a rule is for an operator that makes new "
                 "results of its arguments",
                 op, c10::toString(schema));
  const bool makes_tensors =
      !schema.returns().empty() && std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
        return is_tensor(result) || result.type()->str() == "List[Tensor]" || result.type()->str() == "Tensor[]";
      });
  USER_CHECK(makes_tensors, "op_rule {}: it returns something else than tensors, which a plan cannot hold", op);
  USER_CHECK(!handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
             "op_rule {}: it is made of other operators (CompositeImplicitAutograd), which a plan holds one by one",
             op);
}

// As far as the schema alone tells.
void check_dims(const std::string& op, const DimNames& dims, const c10::FunctionSchema& schema) {
  const auto check = [&](const std::vector<c10::Argument>& arguments, size_t named, std::string_view what) {
    const auto tensors = static_cast<size_t>(std::ranges::count_if(
        arguments, [](const c10::Argument& one) { return is_tensor(one) || is_optional_tensor(one); }));
    if (std::ranges::any_of(arguments, takes_a_list_of_tensors)) return;
    USER_CHECK(named == tensors, "op_rule {}: sharding names the dimensions of {} {}, the operator has {}", op, named,
               what, tensors);
  };
  check(schema.arguments(), dims.operands.size(), "tensor arguments");
  check(schema.returns(), dims.results.size(), "results");
}

TensorType type_of(const Trace& trace, ValueId id) {
  const Value& value = trace.values[id.index()];
  return {value.dtype, value.sizes};
}

DType dtype_of_number(const WrappedNumber& number) {
  if (std::holds_alternative<bool>(number.number)) return DType::kBool;
  return std::holds_alternative<int64_t>(number.number) ? DType::kI64 : DType::kF64;
}

OpUse use_of(const Trace& trace, const Call& call) {
  OpUse use;
  const auto operand = [&](ValueId id) {
    if (!id.valid()) return ValueId();
    use.operands.push_back(type_of(trace, id));
    return ValueId(use.operands.size() - 1);
  };
  for (const Arg& arg : call.args) {
    if (const auto* one = std::get_if<ValueId>(&arg)) {
      use.args.emplace_back(operand(*one));
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      std::vector<ValueId> operands;
      for (ValueId id : *list) operands.push_back(operand(id));
      use.args.emplace_back(std::move(operands));
    } else {
      if (const auto* number = std::get_if<WrappedNumber>(&arg)) use.operands.push_back({dtype_of_number(*number), {}});
      use.args.push_back(arg);
    }
  }
  for_each_value(call.results, [&](ValueId id) { use.results.push_back(type_of(trace, id)); });
  return use;
}

double amount(const OpRule& rule, std::string_view what, const std::function<double(const OpUse&)>& of,
              const OpUse& use) {
  const double value = of(use);
  USER_CHECK(std::isfinite(value) && value >= 0, "op_rule {}: {} gives {}; it is 0 or more", rule.op, what, value);
  return value;
}

std::string shapes_text(const std::vector<Shape>& shapes) {
  std::vector<std::string> parts;
  for (const Shape& shape : shapes) parts.push_back(str("[{}]", fmt::join(shape, ", ")));
  return str("{}", fmt::join(parts, ", "));
}

void check_shapes(const OpRule& rule, const OpUse& use) {
  if (!rule.parts.shapes) return;
  const std::vector<Shape> expected = rule.parts.shapes(use);
  std::vector<Shape> made;
  for (const TensorType& type : use.results) made.push_back(type.shape);
  std::vector<std::string> operands;
  for (const TensorType& type : use.operands) operands.push_back(to_text(type));
  USER_CHECK(expected == made, "op_rule {}: of {} its shapes are {}, and the operator made {}; mend shapes=", rule.op,
             fmt::join(operands, ", "), shapes_text(expected), shapes_text(made));
}

// Those that a rule names of this call: an optional tensor that it is not given has no dimensions.
DimNames dims_of(const DimNames& dims, const Call& call) {
  const auto op = find_operator(call.op);
  const auto& arguments = op.schema().arguments();
  if (std::ranges::any_of(arguments, takes_a_list_of_tensors)) return dims;
  DimNames out = dims;
  out.operands.clear();
  size_t next = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_tensor(arguments[i]) && !is_optional_tensor(arguments[i])) continue;
    const auto* const value = std::get_if<ValueId>(&call.args[i]);
    const bool is_given = is_tensor(arguments[i]) || (value != nullptr && value->valid());
    if (is_given) out.operands.push_back(dims.operands[next]);
    ++next;
  }
  std::erase_if(out.combined, [&](const auto& one) {
    return std::ranges::none_of(
        out.operands, [&](const DimNames::Names& names) { return std::ranges::find(names, one.first) != names.end(); });
  });
  return out;
}

void check_results_are_own(const Trace& trace, const Call& call) {
  std::set<StorageId> given;
  for_each_value(call.args, [&](ValueId id) { given.insert(trace.values[id.index()].storage); });
  for_each_value(call.results, [&](ValueId id) {
    USER_CHECK(given.insert(trace.values[id.index()].storage).second,
               "op_rule {}: it gave back memory of an argument or of another result; a rule is for an operator whose "
               "results are its own: return a clone()",
               call.op);
  });
}

}  // namespace

OpRule op_rule(std::string op, OpRuleParts parts) {
  USER_CHECK(!is_known_operator(op), "op_rule {}: stepc knows that operator; a rule is for one of the program's own",
             op);
  const size_t dot = op.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {op.substr(0, dot), dot == std::string::npos ? std::string() : op.substr(dot + 1)});
  USER_CHECK(
      handle.has_value(),
      "op_rule {}: there is no such operator; define it first (torch.library.custom_op, TORCH_LIBRARY) and name it "
      "as in \"library::name\" or \"library::name.overload\"",
      op);
  check_schema(op, *handle);
  OpRule rule{std::move(op), std::move(parts), {}};
  if (rule.parts.sharding.empty()) return rule;
  try {
    rule.dims = parse_dim_names(rule.parts.sharding);
  } catch (const UserError& error) {
    user_error("op_rule {}: sharding: {}", rule.op, error.what());
  }
  check_dims(rule.op, *rule.dims, handle->schema());
  return rule;
}

const OpRule* find_rule(const OpRules& rules, std::string_view op) {
  const auto found = std::ranges::find(rules, op, &OpRule::op);
  return found == rules.end() ? nullptr : &*found;
}

bool is_known_operator(std::string_view op) {
  constexpr std::string_view kKnown[] = {"aten", "prim", "prims", "mkl", "mkldnn", "quantized", "stepc"};
  return std::ranges::find(kKnown, op.substr(0, op.find("::"))) != std::end(kKnown);
}

void apply_rules(const OpRules& rules, Trace& trace) {
  if (rules.empty()) return;
  for (Call& call : trace.calls) {
    const OpRule* const rule = find_rule(rules, call.op);
    if (rule == nullptr) continue;
    check_results_are_own(trace, call);
    const OpUse use = use_of(trace, call);
    check_shapes(*rule, use);
    CallRule& said = call.rule.emplace();
    if (rule->parts.flops) said.flops = amount(*rule, "flops", rule->parts.flops, use);
    if (rule->parts.bytes) said.bytes = amount(*rule, "bytes", rule->parts.bytes, use);
    if (!rule->dims) continue;
    said.dims = dims_of(*rule->dims, call);
    try {
      named_rule(*said.dims, use.operands, use.results);
    } catch (const UserError& error) {
      user_error("op_rule {}: sharding \"{}\": {}", rule->op, to_text(*said.dims), error.what());
    }
  }
}

}  // namespace stepc
