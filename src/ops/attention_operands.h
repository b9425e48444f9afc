// Where the rows of attention have their operands. In the place of a mask may stand the documents of packed rows, in
// two operands or four, each i64 (batch or 1, tokens):
//
//   the documents of queries and of keys         a query sees the keys of its document ...
//   [the places of queries and of keys]          ... whose place is not behind its own
#pragma once

#include <cstddef>
#include <string_view>

#include "ir/graph.h"

namespace stepc {

// Whether it is an attention or the gradients of one.
bool attends(std::string_view op);
inline bool attends(const Node& node) { return !node.aten && attends(node.op); }

// Queries, then keys and values; the mask or the first of the documents, if there are any.
struct AttentionPlaces {
  bool is_backward = false;
  size_t q = 0, mask = 3;

  [[nodiscard]] bool has_mask(size_t operands) const { return operands == mask + 1; }
  [[nodiscard]] bool has_documents(size_t operands) const { return operands > mask + 1; }
  [[nodiscard]] bool has_places(size_t operands) const { return operands > mask + 2; }
};
AttentionPlaces attention_places(std::string_view op);
inline AttentionPlaces attention_places(const Node& attention) { return attention_places(attention.op); }

}  // namespace stepc
