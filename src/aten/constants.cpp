#include "aten/constants.h"

#include <array>
#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>

#include "base/check.h"

namespace stepc {

namespace {
constexpr std::array<std::pair<c10::ScalarType, DType>, 14> kDTypes = {{
    {c10::ScalarType::Bool, DType::kBool},
    {c10::ScalarType::Byte, DType::kU8},
    {c10::ScalarType::Char, DType::kI8},
    {c10::ScalarType::Short, DType::kI16},
    {c10::ScalarType::Int, DType::kI32},
    {c10::ScalarType::Long, DType::kI64},
    {c10::ScalarType::Half, DType::kF16},
    {c10::ScalarType::BFloat16, DType::kBF16},
    {c10::ScalarType::Float, DType::kF32},
    {c10::ScalarType::Double, DType::kF64},
    {c10::ScalarType::ComplexFloat, DType::kC64},
    {c10::ScalarType::ComplexDouble, DType::kC128},
    {c10::ScalarType::Float8_e4m3fn, DType::kF8E4M3},
    {c10::ScalarType::Float8_e5m2, DType::kF8E5M2},
}};
constexpr std::array<std::pair<c10::Layout, std::string_view>, 2> kLayouts = {
    {{c10::Layout::Strided, "strided"}, {c10::Layout::Sparse, "sparse"}}};
constexpr std::array<std::pair<c10::MemoryFormat, std::string_view>, 4> kMemoryFormats = {
    {{c10::MemoryFormat::Contiguous, "contiguous"},
     {c10::MemoryFormat::Preserve, "preserve"},
     {c10::MemoryFormat::ChannelsLast, "channels_last"},
     {c10::MemoryFormat::ChannelsLast3d, "channels_last_3d"}}};

template <class Table>
std::optional<Arg> symbol_from(Symbol::Kind kind, int64_t value, const Table& table) {
  for (const auto& [code, name] : table)
    if (static_cast<int64_t>(code) == value) return Symbol{kind, std::string(name)};
  return std::nullopt;
}
template <class Table>
c10::IValue symbol_to(const Symbol& symbol, const Table& table) {
  for (const auto& [code, name] : table)
    if (name == symbol.text) return static_cast<int64_t>(code);
  user_error("the trace holds the unknown constant '{}'", symbol.text);
}

// What an int argument means: the schema's dynamic type hides ScalarType, Layout and MemoryFormat behind int.
c10::TypeKind real_kind(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  return type->kind();
}
}  // namespace

DType dtype_of(c10::ScalarType type) {
  for (const auto& [scalar_type, dtype] : kDTypes)
    if (scalar_type == type) return dtype;
  user_error("tensors of element type {} are not captured", c10::toString(type));
}

c10::ScalarType scalar_type_of(DType dtype) {
  for (const auto& [scalar_type, candidate] : kDTypes)
    if (candidate == dtype) return scalar_type;
  INTERNAL_CHECK(false, "dtype {} has no row", name_of(dtype));
  return c10::ScalarType::Undefined;
}

std::optional<Arg> constant_from_ivalue(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isNone()) return std::monostate();
  if (value.isBool()) return value.toBool();
  if (value.isInt()) {
    const int64_t number = value.toInt();
    switch (real_kind(argument)) {
      case c10::TypeKind::ScalarTypeType:
        return Symbol{Symbol::Kind::kDType, std::string(name_of(dtype_of(static_cast<c10::ScalarType>(number))))};
      case c10::TypeKind::LayoutType:
        return symbol_from(Symbol::Kind::kLayout, number, kLayouts);
      case c10::TypeKind::MemoryFormatType:
        return symbol_from(Symbol::Kind::kMemoryFormat, number, kMemoryFormats);
      default:
        return number;
    }
  }
  if (value.isDouble()) return value.toDouble();
  if (value.isComplexDouble()) return std::complex<double>(value.toComplexDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return Symbol{Symbol::Kind::kDevice, value.toDevice().str()};
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) return value.toDoubleVector();
  if (value.isBoolList()) {
    const auto list = value.toBoolList();
    std::vector<bool> out;
    for (bool element : list) out.push_back(element);
    return out;
  }
  if (value.isList()) {  // a list of Scalars, as the foreach operators take
    std::vector<double> reals;
    std::vector<int64_t> integers;
    const auto list = value.toListRef();
    for (const c10::IValue& element : list) {
      if (element.isDouble())
        reals.push_back(element.toDouble());
      else if (element.isInt())
        integers.push_back(element.toInt());
      else
        return std::nullopt;
    }
    if (reals.size() == list.size()) return reals;
    if (integers.size() == list.size()) return integers;
  }
  return std::nullopt;
}

namespace {
struct ToIValue {
  const c10::Argument& argument;
  c10::IValue operator()(std::monostate) const { return {}; }
  c10::IValue operator()(bool value) const { return value; }
  c10::IValue operator()(int64_t value) const { return value; }
  c10::IValue operator()(double value) const { return value; }
  c10::IValue operator()(const std::complex<double>& value) const { return c10::complex<double>(value); }
  c10::IValue operator()(const std::string& value) const { return value; }
  c10::IValue operator()(const std::vector<int64_t>& value) const {
    if (is_scalar_list()) return scalars(value);
    return value;
  }
  c10::IValue operator()(const std::vector<double>& value) const {
    if (is_scalar_list()) return scalars(value);
    return value;
  }
  c10::IValue operator()(const std::vector<bool>& value) const {
    c10::List<bool> list;
    for (bool element : value) list.push_back(element);
    return list;
  }
  c10::IValue operator()(const Symbol& symbol) const {
    switch (symbol.kind) {
      case Symbol::Kind::kDType: {
        const auto dtype = dtype_from_name(symbol.text);
        USER_CHECK(dtype.has_value(), "the trace holds the unknown dtype '{}'", symbol.text);
        return static_cast<int64_t>(scalar_type_of(*dtype));
      }
      case Symbol::Kind::kDevice:
        return c10::Device(symbol.text);
      case Symbol::Kind::kLayout:
        return symbol_to(symbol, kLayouts);
      case Symbol::Kind::kMemoryFormat:
        return symbol_to(symbol, kMemoryFormats);
    }
    return {};
  }
  c10::IValue operator()(const WrappedNumber& number) const { return tensor_of(number); }
  c10::IValue operator()(ValueId) const { return not_constant(); }
  c10::IValue operator()(const std::vector<ValueId>&) const { return not_constant(); }
  c10::IValue operator()(const ReadNumber&) const { return not_constant(); }
  c10::IValue operator()(const GeneratorArg&) const { return not_constant(); }

  static c10::IValue not_constant() {
    INTERNAL_CHECK(false, "a value is no constant");
    return {};
  }
  bool is_scalar_list() const {
    c10::TypePtr type = argument.real_type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
    return type->kind() == c10::TypeKind::ListType &&
           type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::NumberType;
  }
  template <class T>
  static c10::IValue scalars(const std::vector<T>& values) {
    c10::impl::GenericList list(c10::NumberType::get());
    for (T value : values) list.push_back(value);
    return list;
  }
};
}  // namespace

c10::IValue constant_to_ivalue(const Arg& arg, const c10::Argument& argument) {
  return std::visit(ToIValue{argument}, arg);
}

std::optional<WrappedNumber> wrapped_number_of(const at::Tensor& tensor) {
  INTERNAL_CHECK_EQ(tensor.dim(), 0);
  if (!tensor.device().is_cpu()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Bool:
      return WrappedNumber{*tensor.const_data_ptr<bool>()};
    case c10::ScalarType::Long:
      return WrappedNumber{*tensor.const_data_ptr<int64_t>()};
    case c10::ScalarType::Double:
      return WrappedNumber{*tensor.const_data_ptr<double>()};
    case c10::ScalarType::ComplexDouble:
      return WrappedNumber{std::complex<double>(*tensor.const_data_ptr<c10::complex<double>>())};
    default:
      user_error("a number of element type {} is not captured", c10::toString(tensor.scalar_type()));
  }
}

at::Tensor tensor_of(const WrappedNumber& number) {
  return at::native::wrapped_scalar_tensor(std::visit(
      [](const auto& value) -> c10::Scalar {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::complex<double>>)
          return c10::complex<double>(value);
        else
          return value;
      },
      number.number));
}

}  // namespace stepc
