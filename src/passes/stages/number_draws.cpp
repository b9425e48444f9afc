#include "passes/stages/number_draws.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "ops/op_def.h"
#include "passes/rewriter.h"

namespace stepc {

namespace {

// Of each element of such a draw, in the one that goes on for all micro-batches. Each dimension counts by itself, so
// that all of them can be split.
TensorId places_of(GraphBuilder& b, const Shape& shape, TensorId turn) {
  const Shape strides = contiguous_strides(shape);
  const TensorId behind = b.add("mul", {turn, b.full(static_cast<double>(element_count(shape)), DType::kI64)});
  TensorId places = b.expand(b.reshape(behind, Shape(shape.size(), 1)), shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    Attrs attrs;
    attrs.set("shape", shape);
    attrs.set("dtype", DType::kI64);
    attrs.set("dim", static_cast<int64_t>(d));
    attrs.set("start", int64_t{0});
    attrs.set("step", strides[d]);
    places = b.add("add", {places, b.add("iota", {}, attrs)});
  }
  return places;
}

}  // namespace

Graph draw_as_rows(const Graph& micro_batch, uint32_t turn) {
  Rewriter r(micro_batch);
  std::optional<TensorId> which;
  for (const Node& node : micro_batch.nodes) {
    if (!has(node, Trait::kRandom)) {
      r.keep(node);
      continue;
    }
    r.at(node);
    if (!which) which = r.b().graph().add_input({InputKind::kBatch, str("{}", turn), {}, {}, 0}, {DType::kI64, {}});
    const TensorId places = places_of(r.b(), micro_batch.shape(node.outputs[0]), *which);
    r.replace(node.outputs[0], r.b().add(node.op, {r[node.inputs[0]], places}, node.attrs));
  }
  return r.finish();
}

Graph draw_behind(Graph update, const Graph& micro_batch) {
  int64_t streams = 0;
  for (const Node& node : micro_batch.nodes)
    if (has(node, Trait::kRandom)) streams = std::max(streams, node.attrs.get<int64_t>("stream") + 1);
  for (Node& node : update.nodes)
    if (has(node, Trait::kRandom)) node.attrs.set("stream", node.attrs.get<int64_t>("stream") + streams);
  return update;
}

}  // namespace stepc
