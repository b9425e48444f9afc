#include "checkpoint/safetensors_dtype.h"

#include <array>
#include <cstddef>

namespace stepc {

namespace {
struct Row {
  DType dtype;
  std::string_view name;
};
// In the order of the format's own list of types; a row's place is its rank.
constexpr std::array<Row, 13> kRows = {{{DType::kBool, "BOOL"},
                                        {DType::kU8, "U8"},
                                        {DType::kI8, "I8"},
                                        {DType::kF8E5M2, "F8_E5M2"},
                                        {DType::kF8E4M3, "F8_E4M3"},
                                        {DType::kI16, "I16"},
                                        {DType::kF16, "F16"},
                                        {DType::kBF16, "BF16"},
                                        {DType::kI32, "I32"},
                                        {DType::kF32, "F32"},
                                        {DType::kC64, "C64"},
                                        {DType::kF64, "F64"},
                                        {DType::kI64, "I64"}}};
}  // namespace

std::optional<std::string_view> safetensors_name(DType dtype) {
  for (const auto& row : kRows)
    if (row.dtype == dtype) return row.name;
  return std::nullopt;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

int safetensors_rank(DType dtype) {
  for (size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].dtype == dtype) return static_cast<int>(i);
  return -1;
}

}  // namespace stepc
