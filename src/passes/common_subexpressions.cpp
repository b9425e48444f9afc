#include "passes/common_subexpressions.h"

#include <algorithm>
#include <map>

#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {
struct Key {
  std::string op;
  std::vector<TensorId> inputs;
  std::string attrs;
  auto operator<=>(const Key&) const = default;
};
}  // namespace

Graph common_subexpressions(Graph graph) {  // NOLINT(performance-unnecessary-value-param): a PassFn
  Rewriter r(graph);
  std::map<Key, std::vector<TensorId>> made;
  for (const Node& node : graph.nodes) {
    if (node.aten) {
      r.keep(node);
      continue;
    }
    Key key{node.op, r.inputs_of(node), to_text(node.attrs)};
    if (op_def(node.op).has(Trait::kCommutative)) std::ranges::sort(key.inputs);
    const auto found = made.find(key);
    if (found != made.end())
      r.replace(node.outputs, found->second);
    else
      made[std::move(key)] = r.keep(node);
  }
  return r.finish();
}

}  // namespace stepc
