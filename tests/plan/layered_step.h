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
// goes to its weight; or, of a micro-batch, to what is held for it. Layers are modules "layers.0" and on.
inline Graph layered_step(int64_t layers, int64_t tokens, int64_t width, std::string_view dtype,
                          bool is_micro_batch = false) {
  std::string text = "stepc.graph 1\n";
  const std::string weight = str("{}[{}, {}]", dtype, width, width),
                    activation = str("{}[{}, {}]", dtype, tokens, width);
  const auto module = [&](int64_t layer) { return str("layers.{}", layer); };
  int64_t next = 0;
  for (int64_t l = 0; l < layers; ++l) text += str("input %{}: {} = parameter \"w{}\"\n", next++, weight, l);
  const int64_t held = next;
  if (is_micro_batch)
    for (int64_t l = 0; l < layers; ++l) text += str("input %{}: {} = gradient \"w{}\"\n", next++, weight, l);
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
    const int64_t input = is_micro_batch ? held + l : l;
    text += str("%{}: {} = {}(%{}, %{}) | {} \"{}\"\n", next + 3, weight, is_micro_batch ? "add" : "sub", input,
                next + 1, is_micro_batch ? "backward" : "update", module(l));
    updates += str("update %{} = %{}\n", input, next + 3);
    gradient = next + 2;
    next += 4;
  }
  Graph graph = parse_graph(text + updates);
  verify_ops(graph);
  return graph;
}

// What becomes of the held gradients of such micro-batches.
inline Graph layered_update(int64_t layers, int64_t width, std::string_view dtype) {
  std::string text = "stepc.graph 1\n", updates;
  const std::string weight = str("{}[{}, {}]", dtype, width, width);
  for (const std::string_view kind : {"parameter", "gradient"})
    for (int64_t l = 0; l < layers; ++l)
      text += str("input %{}: {} = {} \"w{}\"\n", kind == "gradient" ? layers + l : l, weight, kind, l);
  for (int64_t l = 0; l < layers; ++l) {
    updates += str("%{}: {} = sub(%{}, %{}) | update \"\"\n", 2 * layers + l, weight, l, layers + l);
  }
  for (int64_t l = 0; l < layers; ++l) updates += str("update %{} = %{}\n", l, 2 * layers + l);
  Graph graph = parse_graph(text + updates);
  verify_ops(graph);
  return graph;
}

}  // namespace stepc
