// A step on virtual ranks, in float64, beside the same step on one device.
#pragma once

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "interp/interpret.h"
#include "interp/interpret_ranks.h"
#include "ops/op_def.h"
#include "passes/partition/partition.h"
#include "passes/pass.h"

namespace stepc::test {

struct Partitioned {
  ShardedStep sharded;
  Graph local;
};
inline Partitioned partitioned(const Graph& graph, const Strategy& strategy) {
  Partitioned out;
  out.sharded = propagate_shardings(graph, strategy);
  verify_ops(out.sharded.graph);
  out.local = partition(out.sharded.graph);
  verify_ops(out.local);
  return out;
}

// The tensors of `local`'s outputs as wholes. Ranks that hold the same must agree bit by bit.
inline std::vector<Array> run_on_ranks(const Graph& local, const std::vector<Array>& inputs,
                                       const AtenCallFn& aten = {}) {
  std::vector<std::vector<Array>> parts(static_cast<size_t>(local.mesh.ranks()));
  for (size_t r = 0; r < parts.size(); ++r)
    for (size_t i = 0; i < local.inputs.size(); ++i) {
      const GraphInput& input = local.inputs[i];
      if (input.kind == InputKind::kMesh)
        parts[r].emplace_back();
      else
        parts[r].push_back(input.part ? local_of(inputs[i], input.part->sharding, local.mesh, static_cast<int64_t>(r))
                                      : inputs[i]);
    }
  const std::vector<std::vector<Array>> outputs = interpret_ranks(local, std::move(parts), aten);
  std::vector<Array> wholes;
  for (size_t o = 0; o < local.outputs.size(); ++o) {
    const GraphOutput& output = local.outputs[o];
    std::vector<Array> of_ranks;
    for (const auto& one : outputs) of_ranks.push_back(one[o]);
    if (!output.tensor.valid()) {
      wholes.emplace_back();
      continue;
    }
    const Shape shape = output.part ? output.part->shape : local.shape(output.tensor);
    const Sharding sharding = output.part ? output.part->sharding : Sharding::whole(shape.size());
    wholes.push_back(whole_of(of_ranks, sharding, shape, local.mesh));
    for (size_t r = 0; r < of_ranks.size(); ++r)
      EXPECT_TRUE(same_bits(local_of(wholes[o], sharding, local.mesh, static_cast<int64_t>(r)), of_ranks[r]) ||
                  !is_even(sharding, local.mesh))
          << "rank " << r << " holds another output " << o;
  }
  return wholes;
}

// The largest error of any output of the step on ranks; `graph` and `inputs` are in f64.
inline double largest_error_on_ranks(const Graph& graph, const Graph& local, const std::vector<Array>& inputs,
                                     const AtenCallFn& aten = {}) {
  const std::vector<Array> expected = interpret(graph, inputs, {}, aten);
  const std::vector<Array> got = run_on_ranks(local, inputs, aten);
  double largest = 0;
  for (size_t o = 0; o < expected.size(); ++o) {
    const double error = expected[o].count() == 0 ? 0 : largest_error(got[o], expected[o]);
    if (!(error <= 1e-10)) ADD_FAILURE() << "output " << o << " is off by " << error;
    largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace stepc::test
