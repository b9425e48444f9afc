// Element types, by their safetensors / PyTorch meaning. Torch-free: capture/ and checkpoint/ map them to
// at::ScalarType.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace stepc {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
  kF8E4M3,  // torch.float8_e4m3fn: no infinities, up to 448
  kF8E5M2,  // up to 57344
};

// Bytes of one element.
int64_t size_of(DType dtype);
// Short text name: "f32", "bf16", "i64", "bool"; the spelling of traces, graphs and reports.
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
bool is_floating(DType dtype);  // real floating-point types
bool is_complex(DType dtype);
constexpr bool is_float8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

}  // namespace stepc
