#include "runtime/bound_call.h"

#include <algorithm>

#include "aten/constants.h"
#include "aten/operators.h"
#include "base/check.h"

namespace stepc {

namespace {
bool is_optional_list(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  return type->kind() == c10::TypeKind::ListType &&
         type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
}

BoundArg bind_arg(const Arg& arg, const c10::Argument& argument, const BoundValues& values,
                  const std::vector<ssize_t>& read_of) {
  BoundArg bound;
  if (const auto* value = std::get_if<ValueId>(&arg)) {
    if (value->valid()) {
      bound.kind = BoundArg::Kind::kValue;
      bound.value = *value;
    } else {
      bound.constant = at::Tensor();
    }
  } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
    bound.kind = is_optional_list(argument) ? BoundArg::Kind::kOptionalList : BoundArg::Kind::kList;
    bound.list = *list;
    bound.lasting = std::all_of(list->begin(), list->end(), [&](ValueId v) { return !v.valid() || values.lasts(v); });
  } else if (const auto* number = std::get_if<ReadNumber>(&arg)) {
    const ssize_t read = read_of[number->read.index()];
    INTERNAL_CHECK(read >= 0, "call {} reads nothing", number->read);
    bound.kind = BoundArg::Kind::kRead;
    bound.number = *number;
    bound.number.read = CallId(static_cast<size_t>(read));
  } else if (const auto* generator = std::get_if<GeneratorArg>(&arg)) {
    bound.kind = BoundArg::Kind::kGenerator;
    bound.generator = generator->generator.index();
  } else {
    bound.constant = constant_to_ivalue(arg, argument);
  }
  return bound;
}
}  // namespace

BoundCall bind_call(const Trace& trace, const Call& call, const BoundValues& values,
                    const std::vector<ssize_t>& read_of, std::vector<bool>& made) {
  BoundCall bound{find_operator(call.op), {}, {}, -1, {}};
  const auto& arguments = bound.op.schema().arguments();
  USER_CHECK(arguments.size() == call.args.size(), "the trace calls {} with {} arguments, this LibTorch's takes {}",
             call.op, call.args.size(), arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i)
    bound.args.push_back(bind_arg(call.args[i], arguments[i], values, read_of));
  const auto define = [&](ValueId value, size_t position, ssize_t element) {
    if (!value.valid()) return;
    const StorageId storage = trace.values[value.index()].storage;
    if (made[storage.index()]) return;
    made[storage.index()] = true;
    bound.results.push_back({position, element, value});
  };
  for (size_t r = 0; r < call.results.size(); ++r) {
    if (const auto* value = std::get_if<ValueId>(&call.results[r])) define(*value, r, -1);
    if (const auto* list = std::get_if<std::vector<ValueId>>(&call.results[r]))
      for (size_t e = 0; e < list->size(); ++e) define((*list)[e], r, static_cast<ssize_t>(e));
  }
  return bound;
}

c10::IValue build_list(const BoundArg& arg, const BoundValues& values) {
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

c10::IValue pass_on(const ReadNumber& number, const c10::IValue& read) {
  const c10::Scalar scalar = read.isBool() ? c10::Scalar(read.toBool()) : read.toScalar();
  WrappedNumber out;
  switch (number.kind) {
    case ReadNumber::Kind::kBool:
      out.number = scalar.toBool();
      break;
    case ReadNumber::Kind::kInt:
      out.number = scalar.toLong();
      break;
    case ReadNumber::Kind::kDouble:
      out.number = scalar.toDouble();
      break;
  }
  if (number.wrapped) return tensor_of(out);
  if (number.kind == ReadNumber::Kind::kBool) return std::get<bool>(out.number);
  if (number.kind == ReadNumber::Kind::kInt) return std::get<int64_t>(out.number);
  return std::get<double>(out.number);
}

Arg arg_of(const c10::IValue& number) {
  if (number.isTensor()) return number.toTensor().numel();
  if (number.isBool()) return number.toBool();
  if (number.isInt()) return number.toInt();
  return number.toDouble();
}

}  // namespace stepc
