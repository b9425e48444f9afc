// What the ranks of a mesh do together. Along the axes `axes` of the mesh the `ranks` ranks of a group are counted with
// the last axis fastest. Where a collective takes or gives one part a rank, the parts lie along a leading dimension, so
// its operands are contiguous; views before and after it bring that dimension where it belongs. One of several operands
// does with each of them what it would do alone, in one exchange: a bucket (passes/merge_collectives.h).
#include "base/check.h"
#include "ops/rows/families.h"
#include "ops/rules/shape_rules.h"

namespace stepc {

namespace {

int64_t ranks_of(const OpCall& call) {
  const int64_t ranks = call.attrs.get<int64_t>("ranks");
  INTERNAL_CHECK(ranks >= 2, "a collective of {} ranks", ranks);
  return ranks;
}
std::vector<TensorType> infer_as_given(const OpCall& call) { return call.inputs; }
std::vector<TensorType> infer_all_gather(const OpCall& call) {
  std::vector<TensorType> types = call.inputs;
  for (TensorType& type : types) type.shape.insert(type.shape.begin(), ranks_of(call));
  return types;
}
void check_parts(const OpCall& call) {
  for (const TensorType& type : call.inputs)
    INTERNAL_CHECK(!type.shape.empty() && type.shape[0] == ranks_of(call), "{} has no part for each of {} ranks",
                   to_text(type), ranks_of(call));
}
std::vector<TensorType> infer_reduce_scatter(const OpCall& call) {
  check_parts(call);
  std::vector<TensorType> types = call.inputs;
  for (TensorType& type : types) type.shape.erase(type.shape.begin());
  return types;
}
std::vector<TensorType> infer_all_to_all(const OpCall& call) {
  check_parts(call);
  return call.inputs;
}

// The results of an exchange, then its operands.
std::vector<TensorType> infer_wait(const OpCall& call) {
  INTERNAL_CHECK(call.inputs.size() % 2 == 0, "a wait for {} tensors", call.inputs.size());
  return {call.inputs.begin(), call.inputs.begin() + static_cast<ptrdiff_t>(call.inputs.size() / 2)};
}

std::vector<TensorType> infer_rotate(const OpCall& call) {
  const int64_t by = call.attrs.get<int64_t>("by");
  INTERNAL_CHECK(by > 0 && by < ranks_of(call), "{} ranks turn by {}", ranks_of(call), by);
  return call.inputs;
}

OpDef row(std::string_view name, std::string_view summary, Collective collective, InferFn infer, bool reduces) {
  OpDef op;
  op.name = name;
  op.summary = summary;
  op.max_inputs = kMany;
  op.outputs = kMany;
  op.infer = infer;
  op.collective = collective;
  op.attrs = {{"axes", AttrKind::kInts, {}}, {"ranks", AttrKind::kInt, {}}};
  if (reduces) op.attrs.push_back({"reduce", AttrKind::kWord, {}});
  return op;
}

}  // namespace

OpFamily collective_ops() {
  OpDef reshard;
  reshard.name = "reshard";
  reshard.summary = "the same tensor; from here its sharding is the result's";
  reshard.infer = infer_as_given;
  reshard.collective = Collective::kReshard;
  OpDef average = reshard;
  average.name = "average";
  average.summary = "of what each of `ranks` has a value of its own: their mean; from here a sum of the ranks' parts";
  average.attrs = {{"ranks", AttrKind::kInt, {}}};
  OpDef rotate = row("rotate", "around the group, what the rank `by` places before this one gives", Collective::kRotate,
                     infer_rotate, false);
  rotate.attrs.push_back({"by", AttrKind::kInt, {}});
  OpDef wait;
  wait.name = "wait";
  wait.summary =
      "of the results of an exchange and its operands the results, once all has come: the exchange goes on beside what "
      "stands before this";
  wait.min_inputs = 2;
  wait.max_inputs = kMany;
  wait.outputs = kHalf;
  wait.infer = infer_wait;
  wait.collective = Collective::kWait;
  return {
      "collective",
      "What the ranks of a mesh do together; only in a Graph for several devices. With each of several operands the "
      "same, in one exchange. `reduce`: sum, max or min.",
      {
          reshard,
          average,
          row("all_gather", "every rank's operand, one after another along a new leading dimension",
              Collective::kAllGather, infer_all_gather, false),
          row("reduce_scatter", "of the parts along the leading dimension this rank's, reduced over the ranks",
              Collective::kReduceScatter, infer_reduce_scatter, true),
          row("all_reduce", "the operands of all ranks, reduced", Collective::kAllReduce, infer_as_given, true),
          row("all_to_all", "part j goes to rank j, and what rank j sent to this one is part j of the result",
              Collective::kAllToAll, infer_all_to_all, false),
          rotate,
          wait,
      }};
}

}  // namespace stepc
