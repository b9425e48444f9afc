// A step of equal layers, as it is captured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ir/graph.h"
#include "ops/op_def.h"

namespace stepc {

// Layers whose activations the backward pass reads: (tokens, width) times (width, width) each, and tanh. Each gradient
// goes to its weight. So many of them, one behind the other, are a module: "layers.0" and on.
inline Graph layered_step(int64_t layers, int64_t tokens, int64_t width, std::string_view dtype,
                          int64_t of_a_module = 1) {
  std::string text = "stepc.graph 1\n";
  const std::string weight = str("{}[{}, {}]", dtype, width, width),
                    activation = str("{}[{}, {}]", dtype, tokens, width);
  const auto module = [&](int64_t layer) { return str("layers.{}", layer / of_a_module); };
  int64_t next = 0;
  for (int64_t l = 0; l < layers; ++l) text += str("input %{}: {} = parameter \"w{}\"\n", next++, weight, l);
  text += str("input %{}: {} = batch \"0\"\n", next, activation);
  int64_t x = next++;
  std::vector<std::pair<int64_t, int64_t>> kept;
  for (int64_t l = 0; l < layers; ++l) {
    text += str("%{}: {} = matmul(%{}, %{}) {{transpose_a=false, transpose_b=false}} | forward \"{}\"\n", next,
                activation, x, l, module(l));
    text += str("%{}: {} = tanh(%{}) | forward \"{}\"\n", next + 1, activation, next, module(l));
    kept.emplace_back(x, next + 1);
    x = next + 1;
    next += 2;
  }
  int64_t gradient = x;
  std::string updates;
  for (int64_t l = layers; l-- > 0;) {
    const auto& [given, made] = kept[static_cast<size_t>(l)];
    text += str("%{}: {} = mul(%{}, %{}) | backward \"{}\"\n", next, activation, gradient, made, module(l));
    text += str("%{}: {} = matmul(%{}, %{}) {{transpose_a=true, transpose_b=false}} | backward \"{}\"\n", next + 1,
                weight, given, next, module(l));
    text += str("%{}: {} = matmul(%{}, %{}) {{transpose_a=false, transpose_b=true}} | backward \"{}\"\n", next + 2,
                activation, next, l, module(l));
    text += str("%{}: {} = sub(%{}, %{}) | update \"{}\"\n", next + 3, weight, l, next + 1, module(l));
    updates += str("update %{} = %{}\n", l, next + 3);
    gradient = next + 2;
    next += 4;
  }
  Graph graph = parse_graph(text + updates);
  verify_ops(graph);
  return graph;
}

}  // namespace stepc
