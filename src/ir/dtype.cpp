#include "ir/dtype.h"

#include <array>

#include "base/check.h"

namespace stepc {

namespace {
struct Row {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<Row, 14> kRows = {{{DType::kBool, "bool", 1},
                                        {DType::kU8, "u8", 1},
                                        {DType::kI8, "i8", 1},
                                        {DType::kI16, "i16", 2},
                                        {DType::kI32, "i32", 4},
                                        {DType::kI64, "i64", 8},
                                        {DType::kF16, "f16", 2},
                                        {DType::kBF16, "bf16", 2},
                                        {DType::kF32, "f32", 4},
                                        {DType::kF64, "f64", 8},
                                        {DType::kC64, "c64", 8},
                                        {DType::kC128, "c128", 16},
                                        {DType::kF8E4M3, "f8e4m3", 1},
                                        {DType::kF8E5M2, "f8e5m2", 1}}};

const Row& row_of(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  INTERNAL_CHECK_LT(index, kRows.size());
  return kRows[index];
}
}  // namespace

int64_t size_of(DType dtype) { return row_of(dtype).bytes; }
std::string_view name_of(DType dtype) { return row_of(dtype).name; }
std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

bool is_complex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    default:
      return false;
  }
}

}  // namespace stepc
