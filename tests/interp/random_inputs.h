// Arrays for the inputs of a Graph: real numbers from -0.5 to 0.5, whole ones from 0 and below `whole_below`.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "interp/array.h"
#include "ir/graph.h"

namespace stepc::test {

inline std::vector<Array> random_inputs(const Graph& graph, uint64_t seed, uint64_t whole_below) {
  std::mt19937_64 random(seed);
  std::vector<Array> out;
  for (const GraphInput& input : graph.inputs) {
    Array array(graph.type(input.tensor));
    for (int64_t i = 0; i < array.count(); ++i)
      if (array.is_real())
        array.set(i, static_cast<double>(random() % 1000) / 999.0 - 0.5);
      else
        array.set(i, static_cast<int64_t>(random() % whole_below));
    out.push_back(std::move(array));
  }
  return out;
}

}  // namespace stepc::test
