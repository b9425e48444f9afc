#include "interp/array.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/f16_bits.h"
#include "ops/f8_bits.h"

namespace stepc {

Array::Array(TensorType of) : type(std::move(of)) {
  INTERNAL_CHECK(!is_complex(type.dtype), "{} is not interpreted", name_of(type.dtype));
  const auto size = static_cast<size_t>(element_count(type.shape));
  if (is_real())
    reals.assign(size, 0.0);
  else
    integers.assign(size, 0);
}

double Array::real(int64_t i) const {
  const auto place = static_cast<size_t>(i);
  return is_real() ? reals[place] : static_cast<double>(integers[place]);
}
int64_t Array::integer(int64_t i) const {
  return is_real() ? truncated(reals[static_cast<size_t>(i)]) : integers[static_cast<size_t>(i)];
}
void Array::set(int64_t i, double value) {
  if (is_real())
    reals[static_cast<size_t>(i)] = rounded(value, type.dtype);
  else
    integers[static_cast<size_t>(i)] = wrapped(truncated(value), type.dtype);
}
void Array::set(int64_t i, int64_t value) {
  if (is_real())
    reals[static_cast<size_t>(i)] = rounded(static_cast<double>(value), type.dtype);
  else
    integers[static_cast<size_t>(i)] = wrapped(value, type.dtype);
}

bool same_bits(const Array& a, const Array& b) {
  if (!(a.type == b.type) || a.integers != b.integers || a.reals.size() != b.reals.size()) return false;
  for (size_t i = 0; i < a.reals.size(); ++i) {
    if (std::isnan(a.reals[i]) && std::isnan(b.reals[i])) continue;
    if (std::bit_cast<uint64_t>(a.reals[i]) != std::bit_cast<uint64_t>(b.reals[i])) return false;
  }
  return true;
}

double largest_error(const Array& a, const Array& b) {
  if (a.type.shape != b.type.shape) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    const double x = a.real(i);
    const double y = b.real(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double error = std::abs(x - y) / (1 + std::abs(y));
    largest = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(largest, error);
  }
  return largest;
}

std::string to_text(const Array& array) {
  std::string out = to_text(array.type) + " {";
  for (int64_t i = 0; i < array.count(); ++i) out += str("{}{}", i == 0 ? "" : ", ", array.real(i));
  return out + "}";
}

namespace {
template <class T>
void put(std::vector<uint8_t>& out, T value) {
  uint8_t bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.insert(out.end(), bytes, bytes + sizeof(T));
}
template <class T>
T get(const std::vector<uint8_t>& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}
}  // namespace

std::vector<uint8_t> to_bytes(const Array& array) {
  std::vector<uint8_t> out;
  for (int64_t i = 0; i < array.count(); ++i) {
    switch (array.type.dtype) {
      case DType::kF64:
        put(out, array.real(i));
        break;
      case DType::kF32:
        put(out, static_cast<float>(array.real(i)));
        break;
      case DType::kBF16:
        put(out, static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(array.real(i))) >> 16));
        break;
      case DType::kF16:
        put(out, f16_bits(array.real(i)));
        break;
      case DType::kF8E4M3:
      case DType::kF8E5M2:
        put(out, f8_bits(array.real(i), array.type.dtype));
        break;
      case DType::kI64:
        put(out, array.integer(i));
        break;
      case DType::kI32:
        put(out, static_cast<int32_t>(array.integer(i)));
        break;
      case DType::kI16:
        put(out, static_cast<int16_t>(array.integer(i)));
        break;
      default:
        INTERNAL_CHECK_EQ(size_of(array.type.dtype), 1, "{}", name_of(array.type.dtype));
        put(out, static_cast<uint8_t>(array.integer(i)));
    }
  }
  return out;
}

Array from_bytes(const TensorType& type, const std::vector<uint8_t>& bytes) {
  INTERNAL_CHECK_EQ(static_cast<int64_t>(bytes.size()), bytes_of(type));
  Array out(type);
  for (int64_t i = 0; i < out.count(); ++i) {
    const auto place = static_cast<size_t>(i);
    switch (type.dtype) {
      case DType::kF64:
        out.set(i, get<double>(bytes, place));
        break;
      case DType::kF32:
        out.set(i, static_cast<double>(get<float>(bytes, place)));
        break;
      case DType::kBF16:
        out.set(i, static_cast<double>(std::bit_cast<float>(uint32_t{get<uint16_t>(bytes, place)} << 16)));
        break;
      case DType::kF16:
        out.set(i, f16_value(get<uint16_t>(bytes, place)));
        break;
      case DType::kF8E4M3:
      case DType::kF8E5M2:
        out.set(i, f8_value(bytes[place], type.dtype));
        break;
      case DType::kI64:
        out.set(i, get<int64_t>(bytes, place));
        break;
      case DType::kI32:
        out.set(i, int64_t{get<int32_t>(bytes, place)});
        break;
      case DType::kI16:
        out.set(i, int64_t{get<int16_t>(bytes, place)});
        break;
      default:
        out.set(i, static_cast<int64_t>(bytes[place]));
    }
  }
  return out;
}

void copy_element(Array& out, int64_t to, const Array& value, int64_t from) {
  if (out.is_real())
    out.reals[static_cast<size_t>(to)] = value.reals[static_cast<size_t>(from)];
  else
    out.integers[static_cast<size_t>(to)] = value.integers[static_cast<size_t>(from)];
}

}  // namespace stepc
