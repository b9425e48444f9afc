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

// `inputs`: of the whole step, by kind and key.
inline std::vector<Array> run_on_ranks(const Graph& whole, const Graph& local, const std::vector<Array>& inputs,
                                       const AtenCallFn& aten = {}) {
  const auto input_of = [&](const GraphInput& input) {
    for (size_t i = 0; i < whole.inputs.size(); ++i)
      if (whole.inputs[i].kind == input.kind && whole.inputs[i].key == input.key) return inputs[i];
    ADD_FAILURE() << "the step has no " << name_of(input.kind) << " '" << input.key << "'";
    return Array();
  };
  return interpret_on_ranks(local, input_of, aten);
}

// The largest error of any output of the step on ranks; `graph` and `inputs` are in f64.
inline double largest_error_on_ranks(const Graph& graph, const Graph& local, const std::vector<Array>& inputs,
                                     const AtenCallFn& aten = {}) {
  const std::vector<Array> expected = interpret(graph, inputs, {}, aten);
  const std::vector<Array> got = run_on_ranks(graph, local, inputs, aten);
  double largest = 0;
  for (size_t o = 0; o < expected.size(); ++o) {
    const double error = expected[o].count() == 0 ? 0 : largest_error(got[o], expected[o]);
    if (!(error <= 1e-10)) ADD_FAILURE() << "output " << o << " is off by " << error;
    largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace stepc::test
