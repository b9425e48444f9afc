// Windows as views: derives a strided window of some memory from the tensor that holds the memory, and writes it back,
// with view ops only.
//
//   memory: f32[6, 4], window: sizes (3, 2) strides (8, 1) offset 5     rows 1, 3, 5, columns 1 and 2
//   reshape [6, 4] -> slice starts [1, 1] sizes [3, 2] steps [2, 1]
#pragma once

#include <optional>

#include "ops/graph_builder.h"

namespace stepc {

// Offset and strides count elements from the start of the memory.
struct Window {
  Shape sizes;
  Shape strides;
  int64_t offset = 0;
  bool operator==(const Window&) const = default;
};

// Dimensions from the largest stride to the smallest; dimensions of size 1 keep their order and their places.
Shape memory_order(const Window& window);
// Whether the window's elements fill one block of memory, each once, in any order of dimensions.
bool is_dense(const Window& window);

// Views `base`, which is dense, as `target`, whose elements all lie in `base`.
TensorId view_of(GraphBuilder& b, TensorId base, const Window& base_window, const Window& target);

// Whether `target` contains every element of `base` exactly once.
bool covers(const Window& base_window, const Window& target);

// `base` with the elements of `target` replaced by `value`. If elements of `target` overlap, the last one stays.
TensorId write_view(GraphBuilder& b, TensorId base, const Window& base_window, const Window& target, TensorId value);

}  // namespace stepc
