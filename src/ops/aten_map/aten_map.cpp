#include "ops/aten_map/aten_map.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/check.h"
#include "ops/op_def.h"

namespace stepc {

// ---- arguments

bool AtenMapper::has(size_t i) const {
  if (i >= args_.size() || std::holds_alternative<std::monostate>(args_[i])) return false;
  const auto* value = std::get_if<ValueId>(&args_[i]);
  return value == nullptr || value->valid();
}

namespace {
template <class Variant>
TensorId constant_of(GraphBuilder& b, const Variant& number) {
  if (const auto* flag = std::get_if<bool>(&number)) return b.full(*flag ? 1 : 0, DType::kBool);
  if (const auto* integer = std::get_if<int64_t>(&number))
    return b.add("full", {}, {{"value", *integer}, {"dtype", DType::kI64}, {"shape", Shape()}});
  if (const auto* real = std::get_if<double>(&number)) return b.full(*real, DType::kF64);
  AtenMapper::unmapped("an argument is no number");
}
}  // namespace

TensorId AtenMapper::tensor(size_t i) {
  if (!has(i)) unmapped(str("argument {} is not given", i));
  if (const auto* value = std::get_if<ValueId>(&args_[i])) return environment_.read(*value);
  if (const auto* wrapped = std::get_if<WrappedNumber>(&args_[i])) return constant_of(b, wrapped->number);
  if (const auto* read = std::get_if<ReadNumber>(&args_[i])) return environment_.number(*read);
  return constant_of(b, args_[i]);
}
TensorId AtenMapper::tensor(size_t i, DType dtype) {
  const auto* real = std::get_if<double>(&args_[i]);
  const auto* integer = std::get_if<int64_t>(&args_[i]);
  if (real != nullptr && is_floating(dtype)) return b.full(*real, dtype);
  if (integer != nullptr && is_floating(dtype)) return b.full(static_cast<double>(*integer), dtype);
  return b.cast(tensor(i), dtype);
}
std::vector<TensorId> AtenMapper::tensors(size_t i) {
  const auto* list = i < args_.size() ? std::get_if<std::vector<ValueId>>(&args_[i]) : nullptr;
  if (list == nullptr) unmapped(str("argument {} is no list of tensors", i));
  std::vector<TensorId> out;
  for (ValueId value : *list) {
    if (!value.valid()) unmapped("an undefined tensor in a list");
    out.push_back(environment_.read(value));
  }
  return out;
}

int64_t AtenMapper::integer(size_t i, std::optional<int64_t> otherwise) const {
  if (!has(i) && otherwise) return *otherwise;
  const auto* value = has(i) ? std::get_if<int64_t>(&args_[i]) : nullptr;
  if (value == nullptr) unmapped(str("argument {} is no integer", i));
  return *value;
}
double AtenMapper::real(size_t i, std::optional<double> otherwise) const {
  if (!has(i) && otherwise) return *otherwise;
  if (has(i))
    if (const auto* value = std::get_if<double>(&args_[i])) return *value;
  return static_cast<double>(integer(i));
}
bool AtenMapper::flag(size_t i, std::optional<bool> otherwise) const {
  if (!has(i) && otherwise) return *otherwise;
  const auto* value = has(i) ? std::get_if<bool>(&args_[i]) : nullptr;
  if (value == nullptr) unmapped(str("argument {} is no bool", i));
  return *value;
}
Shape AtenMapper::ints(size_t i, std::optional<Shape> otherwise) const {
  if (!has(i) && otherwise) return *otherwise;
  if (has(i)) {
    if (const auto* value = std::get_if<int64_t>(&args_[i])) return {*value};
    if (const auto* value = std::get_if<std::vector<int64_t>>(&args_[i])) return *value;
  }
  unmapped(str("argument {} is no list of integers", i));
}
std::string AtenMapper::text(size_t i, const std::string& otherwise) const {
  if (!has(i)) return otherwise;
  const auto* value = std::get_if<std::string>(&args_[i]);
  if (value == nullptr) unmapped(str("argument {} is no text", i));
  return *value;
}

const TensorType& AtenMapper::result(size_t k) const {
  if (k >= results_.size()) unmapped(str("the call has no result {}", k));
  return results_[k];
}

// ---- type promotion

namespace {
int category(DType dtype) { return dtype == DType::kBool ? 0 : is_complex(dtype) ? 3 : is_floating(dtype) ? 2 : 1; }

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (category(a) != category(b)) return category(a) > category(b) ? a : b;
  if (category(a) == 2 && size_of(a) == size_of(b)) return DType::kF32;  // f16 and bf16
  if (category(a) == 1 && (a == DType::kU8 || b == DType::kU8)) {
    const DType other = a == DType::kU8 ? b : a;
    return other == DType::kI8 ? DType::kI16 : other;
  }
  return size_of(a) > size_of(b) ? a : b;
}
}  // namespace

DType AtenMapper::promoted(const std::vector<size_t>& arguments) {
  std::array<std::optional<DType>, 3> found;  // with dimensions, without, numbers
  const auto note = [&](size_t priority, DType dtype) {
    found[priority] = found[priority] ? promote(*found[priority], dtype) : dtype;
  };
  for (size_t i : arguments) {
    if (!has(i)) continue;
    const Arg& arg = args_[i];
    if (const auto* value = std::get_if<ValueId>(&arg)) {
      const TensorType type = b.type(environment_.read(*value));
      note(type.shape.empty() ? 1 : 0, type.dtype);
      continue;
    }
    const auto* wrapped = std::get_if<WrappedNumber>(&arg);
    const auto* read = std::get_if<ReadNumber>(&arg);
    const bool is_real = std::holds_alternative<double>(arg) ||
                         (wrapped != nullptr && std::holds_alternative<double>(wrapped->number)) ||
                         (read != nullptr && read->kind == ReadNumber::Kind::kDouble);
    const bool is_bool = std::holds_alternative<bool>(arg) ||
                         (wrapped != nullptr && std::holds_alternative<bool>(wrapped->number)) ||
                         (read != nullptr && read->kind == ReadNumber::Kind::kBool);
    note(2, is_real ? DType::kF32 : is_bool ? DType::kBool : DType::kI64);
  }
  std::optional<DType> out;
  for (const auto& dtype : found) {
    if (!dtype) continue;
    if (!out || category(*dtype) > category(*out)) out = dtype;
  }
  if (!out) unmapped("no operand to promote");
  return *out;
}

// ---- what rows share

TensorId AtenMapper::as_result(TensorId x, size_t k) {
  const TensorType& type = result(k);
  TensorId out = b.cast(x, type.dtype);
  if (b.shape(out) != type.shape) out = b.expand(out, type.shape);
  return out;
}

TensorId AtenMapper::random(std::string_view op, Shape shape, DType dtype) {
  return b.add(op, {environment_.rng(args_)},
               {{"shape", std::move(shape)}, {"dtype", dtype}, {"stream", environment_.next_stream(args_)}});
}

int64_t AtenMapper::dim(int64_t d, size_t rank) {
  const auto dims = static_cast<int64_t>(rank);
  const int64_t counted = d < 0 ? d + dims : d;
  if (counted < 0 || counted >= dims) unmapped("a dimension out of range");  // ATen has dimension 0 of a 0-dim tensor
  return counted;
}

// ---- names

namespace {

const std::map<std::string_view, const AtenRow*>& rows_by_name() {
  static const std::vector<AtenRow> kRows = [] {
    std::vector<AtenRow> all;
    for (auto rows : {aten_pointwise_rows(), aten_shape_rows(), aten_reduce_rows(), aten_neural_rows(),
                      aten_convolution_rows(), aten_optimizer_rows()})
      all.insert(all.end(), rows.begin(), rows.end());
    return all;
  }();
  static const auto kMap = [] {
    std::map<std::string_view, const AtenRow*> by_name;
    for (const AtenRow& row : kRows)
      INTERNAL_CHECK(by_name.emplace(row.name, &row).second, "the ATen map has two rows for {}", row.name);
    return by_name;
  }();
  return kMap;
}

const AtenRow* row_of(std::string_view name) {
  const auto found = rows_by_name().find(name);
  return found == rows_by_name().end() ? nullptr : found->second;
}

// The functional overloads that an in-place or out= overload may stand for.
const AtenRow* functional_row(const std::string& base, const std::string& overload) {
  std::vector<std::string> candidates;
  const auto named = [&](const std::string& o) { candidates.push_back(o.empty() ? base : str("{}.{}", base, o)); };
  named(overload);
  if (overload == "out") {
    for (const char* o : {"", "Tensor", "Scalar"}) named(o);
  } else if (overload.ends_with("_out")) {
    const std::string stem = overload.substr(0, overload.size() - 4);
    for (const std::string& o : {stem, str("dim_{}", stem)}) named(o);
  }
  for (const std::string& candidate : candidates)
    if (const AtenRow* row = row_of(candidate)) return row;
  return nullptr;
}

}  // namespace

AtenMatch find_aten_row(std::string_view op) {
  if (!op.starts_with("aten::")) return {};
  const std::string_view name = op.substr(6);
  if (const AtenRow* row = row_of(name)) return {row, false};
  const size_t dot = std::min(name.find('.'), name.size());
  std::string base(name.substr(0, dot));
  std::string overload(dot < name.size() ? name.substr(dot + 1) : "");
  if (base.ends_with('_') && !base.ends_with("__")) base.pop_back();
  const bool foreach = base.starts_with("_foreach_");
  if (foreach) {
    base = base.substr(9);
    if (overload == "List") overload = "Tensor";
    if (overload == "ScalarList") overload = "Scalar";
  }
  return {functional_row(base, overload), foreach};
}

namespace {
// The arguments of the i-th element of a foreach call.
std::vector<Arg> element_args(const std::vector<Arg>& args, size_t i) {
  std::vector<Arg> out;
  for (const Arg& arg : args) {
    if (const auto* values = std::get_if<std::vector<ValueId>>(&arg))
      out.emplace_back(i < values->size() ? (*values)[i] : ValueId());
    else if (const auto* reals = std::get_if<std::vector<double>>(&arg))
      out.emplace_back(i < reals->size() ? (*reals)[i] : 0.0);
    else if (const auto* integers = std::get_if<std::vector<int64_t>>(&arg); integers && !integers->empty())
      out.emplace_back((*integers)[std::min(i, integers->size() - 1)]);
    else
      out.push_back(arg);
  }
  return out;
}
}  // namespace

std::vector<TensorId> map_aten(std::string_view op, AtenMapper& mapper) {
  const AtenMatch match = find_aten_row(op);
  if (match.row == nullptr) AtenMapper::unmapped("no row");
  if (!match.foreach) return match.row->map(mapper);
  std::vector<TensorId> out;
  for (size_t i = 0; i < mapper.result_count(); ++i) {
    AtenMapper element(mapper.b, mapper.environment(), element_args(mapper.args(), i), {mapper.result(i)});
    const std::vector<TensorId> made = match.row->map(element);
    out.push_back(made.at(0));
  }
  return out;
}

bool draws_random(std::string_view op) {
  constexpr std::string_view kDraws[] = {"rand",        "dropout",     "bernoulli",       "normal_", "uniform_",
                                         "multinomial", "exponential", "geometric",       "cauchy",  "log_normal",
                                         "poisson",     "binomial",    "rrelu_with_noise"};
  // Norms and the backward passes of dropout contain such words and draw nothing.
  if (op.find("backward") != std::string_view::npos || op.find("native_norm") != std::string_view::npos) return false;
  return std::ranges::any_of(kDraws, [&](std::string_view word) { return op.find(word) != std::string_view::npos; });
}

}  // namespace stepc
