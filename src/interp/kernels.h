// Evaluation of the core ops that have no scalar body, by family. Private to interp/.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "interp/array.h"

namespace stepc {

using Kernel = std::vector<Array> (*)(const std::vector<Array>& inputs, const Attrs& attrs,
                                      const std::vector<TensorType>& types);
using KernelTable = std::map<std::string_view, Kernel>;

const KernelTable& view_kernels();
const KernelTable& reduce_kernels();
const KernelTable& matmul_kernels();
const KernelTable& index_kernels();
const KernelTable& random_kernels();

}  // namespace stepc
