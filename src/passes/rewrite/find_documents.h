// find_documents: attention whose mask lets each query see the keys of its own document takes the documents instead
// (ops/attention_operands.h), a number a token instead of one a pair. A document's number and a token's place are
// whatever the program compares:
//
//   where(document[query] == document[key] && place[key] <= place[query], 0, -inf)
//
// Places that count the tokens of a row make it causal. The mask is left to dead_code, which runs behind it.
//
// On a GPU the kernels of variable lengths take documents that lie one behind the other, each in the order of its
// places: a guard of the step says so, and queries that are not the keys' tokens keep their mask.
#pragma once

#include "ir/graph.h"

namespace stepc {

Graph find_documents(const Graph& graph, bool is_for_gpu);

}  // namespace stepc
