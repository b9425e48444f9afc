// The format's names for element types, and the order in which writers lay them out.
#pragma once

#include <optional>
#include <string_view>

#include "ir/dtype.h"

namespace stepc {

// "F32", "BF16", ...; nullopt for a dtype that the format lacks.
std::optional<std::string_view> safetensors_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);
// Tensors lie in a file by falling rank, wide types first, so that each is aligned to its element.
int safetensors_rank(DType dtype);

}  // namespace stepc
